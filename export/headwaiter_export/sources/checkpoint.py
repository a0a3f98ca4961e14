"""Load Hugging Face checkpoint directories: config.json and safetensors. Pickled weights are never read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open

from headwaiter_export.errors import SourceError
from headwaiter_export.families.family import Family, find_family
from headwaiter_export.zoo.checkpoint import ZOO_MODEL_TYPE
from headwaiter_export.zoo.families import zoo_family

_PICKLE_PATTERNS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


def load_checkpoint(folder: Path) -> Family:
    """Load a Hugging Face or zoo checkpoint. Raises `SourceError` if it is damaged or its family is not supported."""
    config = _read_config(folder)
    if config["model_type"] == ZOO_MODEL_TYPE:
        _check_weights(folder)
        return zoo_family(folder, config)
    family_class = find_family(str(config["model_type"]))
    _check_weights(folder)
    return family_class(_load_model(folder, family_class, config), folder)


def read_license(folder: Path) -> str | None:
    """Return the licence in the front matter of the model card, if any."""
    model_card = folder / "README.md"
    if not model_card.is_file():
        return None
    parts = model_card.read_text(encoding="utf-8", errors="replace").split("---", 2)
    lines = parts[1].splitlines() if len(parts) == 3 and not parts[0].strip() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("license:")), None) or None


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise SourceError(f"{folder} has no config.json; a checkpoint directory needs config.json and safetensors.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"{file} is not valid JSON ({error}).") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise SourceError(f"{file} has no model_type.")
    return config


def _check_weights(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = [file.name for pattern in _PICKLE_PATTERNS for file in folder.glob(pattern)]
        if pickled:
            raise SourceError(
                f"{folder} has only pickled weights ({pickled[0]}), which can execute code when loaded; if you trust "
                f"them, convert them to model.safetensors with transformers' from_pretrained(…).save_pretrained(…)."
            )
        raise SourceError(
            f"{folder} has no weights; model.safetensors is required (pickled weights, such as pytorch_model.bin, are "
            f"not supported)."
        )
    for file in files:
        try:
            with safe_open(file, "numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{file} is damaged or truncated ({error}); download it again.") from error


def _load_model(folder: Path, family_class: type[Family], config: dict[str, Any]) -> Any:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, report = getattr(transformers, family_class.transformers_class).from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # reported below, with the name of the weight
            output_loading_info=True,
        )
    except (ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SourceError(f"{folder} cannot be loaded as {family_class.transformers_class}: {reason}") from error
    if mismatched := sorted(report["mismatched_keys"]):
        name, shape, expected = mismatched[0]
        raise SourceError(
            f"The weights in {folder} do not match its config.json: {name} has shape {list(shape)}, expected "
            f"{list(expected)}."
        )
    if missing := sorted(report["missing_keys"]):
        architectures = ", ".join(config.get("architectures") or ["no architecture"])
        raise SourceError(
            f"The weights in {folder} lack {missing[0]}{_and_more(missing)}; {family_class.transformers_class} is "
            f"required, config.json states {architectures}."
        )
    return model


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
