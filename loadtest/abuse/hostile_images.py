"""Small files with many pixels, or with shapes that grow when they are resized."""

from __future__ import annotations

import io
from functools import cache

from PIL import Image

_LARGE = (8000, 4000)  # 32 megapixels, the default limit of one image
_STRIP = (10, 6000)


@cache
def one_bit_png() -> bytes:
    """A PNG of 32 megapixels with one bit per pixel: a few kilobytes."""
    return _png("1", _LARGE)


@cache
def strip_png() -> bytes:
    """A strip whose longer edge becomes very long when the shorter one is scaled to a model's size."""
    return _png("RGB", _STRIP)


def _png(mode: str, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()
