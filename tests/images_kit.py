"""Small image processors in Hugging Face form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import (
    DeiTImageProcessorPil,
    DetrImageProcessorPil,
    ViTImageProcessorPil,
    YolosImageProcessorPil,
)

_KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "vit": (ViTImageProcessorPil, {"size": {"height": 30, "width": 30}}),
    "deit": (DeiTImageProcessorPil, {"size": {"height": 36, "width": 36}, "crop_size": {"height": 32, "width": 32}}),
    "swin": (ViTImageProcessorPil, {"size": {"height": 32, "width": 32}, "resample": 3}),
    "detr": (DetrImageProcessorPil, {"size": {"shortest_edge": 40, "longest_edge": 66}}),
    "yolos": (YolosImageProcessorPil, {"size": {"shortest_edge": 48, "longest_edge": 112}}),
}
IMAGE_PROCESSORS = tuple(_KINDS)


def write_image_processor(folder: Path, kind: str, **changes: Any) -> None:
    """Writes `preprocessor_config.json` for one of `IMAGE_PROCESSORS`; `changes` are settings of the processor."""
    processor, settings = _KINDS[kind]
    processor(**settings | changes).save_pretrained(folder)
