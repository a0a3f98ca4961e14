"""Images that were made, as files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from service.calls.drawing import demand_image_name


def demand_target(target: Path) -> None:
    """A name with an ending is a file, any other a folder."""
    if target.suffix and not target.is_dir():
        demand_image_name(target)


def save_images(files: Sequence[bytes], target: Path) -> None:
    """Into a folder one by one, into a file side by side: about as many rows as columns."""
    if target.is_dir() or not target.suffix:
        target.mkdir(parents=True, exist_ok=True)
        for index, file in enumerate(files):
            (target / f"{index}.png").write_bytes(file)
        return
    pictures = [Image.open(io.BytesIO(file)) for file in files]
    columns = math.ceil(math.sqrt(len(pictures)))
    width, height = pictures[0].size
    sheet = Image.new("RGB", (columns * width, math.ceil(len(pictures) / columns) * height))
    for index, picture in enumerate(pictures):
        sheet.paste(picture, (index % columns * width, index // columns * height))
    sheet.save(target)
