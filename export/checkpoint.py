"""Loads a directory in Hugging Face form: config.json and safetensors, never anything that is unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open

from export.errors import SourceError
from export.family import Family, family_of
from export.zoo.checkpoint import ZOO
from export.zoo.families import zoo_family

_PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


def load_checkpoint(folder: Path) -> Family:
    config = _config(folder)
    if config["model_type"] == ZOO:
        _demand_weights(folder)
        return zoo_family(folder, config)
    kind = family_of(str(config["model_type"]))
    _demand_weights(folder)
    return kind(_model(folder, kind, config), folder)


def licence_of(folder: Path) -> str | None:
    """As the model card's header states it."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    header = card.read_text(encoding="utf-8", errors="replace").split("---", 2)
    lines = header[1].splitlines() if len(header) == 3 and not header[0].strip() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("license:")), None) or None


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise SourceError(
            f"{folder} has no config.json: a directory in Hugging Face form has it beside its safetensors."
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"{file} is not JSON ({error}).") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise SourceError(f"{file} does not say its model_type.")
    return config


def _demand_weights(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = [file.name for pattern in _PICKLED for file in folder.glob(pattern)]
        if pickled:
            raise SourceError(
                f"{folder} has its weights only as {pickled[0]}, which can run code when it is read: convert it to "
                f"model.safetensors where you trust it, with transformers' from_pretrained(…).save_pretrained(…)."
            )
        raise SourceError(
            f"{folder} has no weights: model.safetensors is expected (pickled ones, such as pytorch_model.bin, are "
            f"left alone: convert them where you trust them)."
        )
    for file in files:
        try:
            with safe_open(file, "numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{file} is damaged or cut short ({error}): fetch it again.") from error


def _model(folder: Path, kind: type[Family], config: dict[str, Any]) -> Any:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, report = getattr(transformers, kind.head).from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # they are in the report, and refused below
            output_loading_info=True,
        )
    except (ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SourceError(f"{folder} cannot be loaded as {kind.head}: {reason}") from error
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, expected = mismatched[0]
        raise SourceError(
            f"The weights in {folder} do not fit its config.json: {name} is {list(found)}, not {list(expected)}."
        )
    if missing := sorted(report["missing_keys"]):
        stated = ", ".join(config.get("architectures") or ["nothing"])
        raise SourceError(
            f"The weights in {folder} lack {missing[0]}{_and_more(missing)}: {kind.head} is needed, "
            f"its config.json states {stated}."
        )
    return model


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
