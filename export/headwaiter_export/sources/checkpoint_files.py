"""The files of a checkpoint directory: config.json, safetensors, model card. Pickled weights are never read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from headwaiter_export.errors import SourceError

_PICKLE_PATTERNS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


def read_license(folder: Path) -> str | None:
    """Return the licence in the front matter of the model card, if any."""
    model_card = folder / "README.md"
    if not model_card.is_file():
        return None
    parts = model_card.read_text(encoding="utf-8", errors="replace").split("---", 2)
    lines = parts[1].splitlines() if len(parts) == 3 and not parts[0].strip() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("license:")), None) or None


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json; raises `SourceError` if it is missing, damaged or has no `model_type`."""
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


def check_weights(folder: Path) -> None:
    """Raise `SourceError` unless the weights are complete safetensors files."""
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
