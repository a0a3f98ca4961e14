"""Image preprocessing settings and encoding."""

from __future__ import annotations

import io

from PIL import Image

from headwaiter.package.preprocessing import ExactSize, ImageSettings


def square_image_settings(size: int) -> ImageSettings:
    """Resize to `size` × `size` and normalize pixels to [-1, 1]."""
    return ImageSettings(
        white_behind_transparency=False,
        resize=ExactSize(height=size, width=size),
        resample="bilinear",
        rescale=1 / 255,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


def encode_png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()
