"""Pictures as models take them and as requests carry them."""

from __future__ import annotations

import io

from PIL import Image

from service.preprocessing import ExactSize, ImageSettings


def square(size: int) -> ImageSettings:
    """Pixels between -1 and 1, `size` in height and width."""
    return ImageSettings(
        white_behind_transparency=False,
        resize=ExactSize(height=size, width=size),
        resample="bilinear",
        rescale=1 / 255,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


def png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()
