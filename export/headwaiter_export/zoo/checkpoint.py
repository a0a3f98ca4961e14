"""Zoo checkpoints on disk: config.json, model.safetensors and, for models that read text, a tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from headwaiter.package.manifest import DecodingDefaults, Preprocessing
from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.model import ZooModel
from headwaiter_export.zoo.registry import architecture_name, find_architecture

ZOO_MODEL_TYPE = "headwaiter-zoo"  # `model_type` in config.json
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model with its labels, preprocessing and decoding defaults."""

    model: ZooModel
    preprocessing: Preprocessing
    labels: tuple[str, ...] | None = None
    decoding: DecodingDefaults | None = None

    @property
    def architecture(self) -> str:
        return architecture_name(self.model)

    def save(self, folder: Path) -> None:
        """Write config.json and the weights. `Dataset.preprocessing` writes the tokenizer, if there is one."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "model_type": ZOO_MODEL_TYPE,
            "system": self.architecture,
            "sizes": self.model.sizes.model_dump(),
            "labels": self.labels,
            "preprocessing": self.preprocessing.model_dump(exclude_none=True),
            "decoding": None if self.decoding is None else self.decoding.model_dump(),
        }
        staged = folder / f"{WEIGHTS}.new"
        save_file({name: value.contiguous() for name, value in self.model.state_dict().items()}, staged)
        staged.replace(folder / WEIGHTS)
        present = {name: value for name, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(present, indent=2, ensure_ascii=False), encoding="utf-8")


def read_checkpoint(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Load a checkpoint; raise `SourceError` if config.json or the weights are invalid."""
    config_path = str(folder / "config.json")
    model_class = find_architecture(str(config.get("system"))).model
    model = model_class(model_class.Sizes.read(config.get("sizes", {}), config_path))
    try:
        preprocessing = Preprocessing.model_validate(config.get("preprocessing", {}))
        decoding = DecodingDefaults.model_validate(config["decoding"]) if config.get("decoding") else None
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise SourceError(f"{config_path}: {field}: {error.errors()[0]['msg']}.") from error
    _load(model, folder)
    labels = config.get("labels")
    return Checkpoint(model, preprocessing, tuple(map(str, labels)) if labels else None, decoding)


def _load(model: ZooModel, folder: Path) -> None:
    tensors, expected = load_file(folder / WEIGHTS), model.state_dict()
    for name, value in expected.items():
        if name not in tensors:
            raise SourceError(
                f"The weights in {folder} have no tensor {name}, which {architecture_name(model)} requires."
            )
        if tensors[name].shape != value.shape:
            raise SourceError(
                f"The weights in {folder} do not match its config.json: {name} has shape "
                f"{list(tensors[name].shape)}; expected {list(value.shape)}."
            )
    if extra := sorted(tensors.keys() - expected.keys()):
        raise SourceError(
            f"The weights in {folder} have a tensor {extra[0]}, which {architecture_name(model)} does not have."
        )
    model.load_state_dict(tensors)
