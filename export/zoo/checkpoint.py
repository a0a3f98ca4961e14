"""A trained system on disk: config.json, model.safetensors, and a tokenizer where it reads words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from export.errors import SourceError
from export.zoo.model import ZooModel
from export.zoo.registry import find, name_of
from service.package import Decoding, Preprocessing

ZOO = "headwaiter-zoo"  # the model_type in config.json
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A system with what its data made it know: the names of classes, how texts and images become arrays."""

    model: ZooModel
    preprocessing: Preprocessing
    labels: tuple[str, ...] | None = None
    decoding: Decoding | None = None

    @property
    def system(self) -> str:
        return name_of(self.model)

    def save(self, folder: Path) -> None:
        """The tokenizer, where there is one, is in the folder already."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "model_type": ZOO,
            "system": self.system,
            "sizes": self.model.sizes.model_dump(),
            "labels": self.labels,
            "preprocessing": self.preprocessing.model_dump(exclude_none=True),
            "decoding": None if self.decoding is None else self.decoding.model_dump(),
        }
        whole = folder / f"{WEIGHTS}.new"
        save_file({name: value.contiguous() for name, value in self.model.state_dict().items()}, whole)
        whole.replace(folder / WEIGHTS)
        stated = {name: value for name, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(stated, indent=2, ensure_ascii=False), encoding="utf-8")


def read_checkpoint(folder: Path, config: dict[str, Any]) -> Checkpoint:
    where = str(folder / "config.json")
    model_class = find(str(config.get("system"))).model
    model = model_class(model_class.Sizes.read(config.get("sizes", {}), where))
    try:
        preprocessing = Preprocessing.model_validate(config.get("preprocessing", {}))
        decoding = Decoding.model_validate(config["decoding"]) if config.get("decoding") else None
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise SourceError(f"{where}: {place}: {error.errors()[0]['msg']}.") from error
    _load(model, folder)
    labels = config.get("labels")
    return Checkpoint(model, preprocessing, tuple(map(str, labels)) if labels else None, decoding)


def _load(model: ZooModel, folder: Path) -> None:
    found, expected = load_file(folder / WEIGHTS), model.state_dict()
    for name, value in expected.items():
        if name not in found:
            raise SourceError(f"The weights in {folder} lack {name}: they are of another system than {name_of(model)}.")
        if found[name].shape != value.shape:
            raise SourceError(
                f"The weights in {folder} do not fit its config.json: {name} is {list(found[name].shape)}, "
                f"not {list(value.shape)}."
            )
    if extra := sorted(found.keys() - expected.keys()):
        raise SourceError(f"The weights in {folder} have {extra[0]}, which {name_of(model)} has not.")
    model.load_state_dict(found)
