"""Saves generated images."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

from headwaiter.cli.call.box_drawing import check_image_path


def check_output_path(target: Path) -> None:
    """Raise InvalidInput if `target` is a file path that cannot be written; a path without extension is a directory."""
    if target.suffix and not target.is_dir():
        check_image_path(target)


def save_images(contents: Sequence[bytes], target: Path) -> None:
    """Save PNG images as separate files of a directory, or as one image in a near-square grid."""
    if target.is_dir() or not target.suffix:
        target.mkdir(parents=True, exist_ok=True)
        for index, content in enumerate(contents):
            (target / f"{index}.png").write_bytes(content)
        return
    from PIL import Image

    images = [Image.open(io.BytesIO(content)) for content in contents]
    columns = math.ceil(math.sqrt(len(images)))
    width, height = images[0].size
    grid = Image.new("RGB", (columns * width, math.ceil(len(images) / columns) * height))
    for index, image in enumerate(images):
        grid.paste(image, (index % columns * width, index // columns * height))
    grid.save(target)
