"""Small Hugging Face image processors and random images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
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
    """Write `preprocessor_config.json` for one of `IMAGE_PROCESSORS`; `changes` override processor settings."""
    processor, settings = _KINDS[kind]
    processor(**settings | changes).save_pretrained(folder)


def random_png(width: int, height: int, **options: Any) -> bytes:
    """Return a PNG of random pixels, seeded by the width."""
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()
