"""Boxes on a picture."""

from __future__ import annotations

import colorsys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from service.client.errors import InvalidInput
from service.client.results import Box, Detected

_GOLDEN_ANGLE = 0.618034  # neighbouring classes get colours that are far apart
_SMALLEST_TEXT = 12


def demand_image_name(target: Path) -> None:
    known = Image.registered_extensions()
    if target.suffix.lower() not in known:
        raise InvalidInput(f"{target} does not end like an image; .png and .jpg do", field="save")
    if not target.absolute().parent.is_dir():
        raise InvalidInput(f"{target} cannot be written; its folder is not there", field="save")


def draw_boxes(source: Path, found: Detected, target: Path) -> None:
    """Likelier boxes lie over less likely ones."""
    with Image.open(source) as opened:
        picture = ImageOps.exif_transpose(opened).convert("RGB")
    size = max(_SMALLEST_TEXT, min(picture.size) // 32)
    font = ImageFont.load_default(size)
    pen = ImageDraw.Draw(picture)
    for box in reversed(found.boxes):
        pen.rectangle(_corners(box), outline=colour(box.index), width=max(2, size // 6))
    for box in reversed(found.boxes):
        _write_label(pen, box, font, picture.size)
    picture.save(target)


def colour(index: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hls_to_rgb(index * _GOLDEN_ANGLE % 1, 0.45, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def ink(paper: tuple[int, int, int]) -> str:
    """Black or white, whichever stands out more: by contrast as the WCAG define it, above 4.5 for every colour."""
    red, green, blue = (_linear(value / 255) for value in paper)
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


def _linear(value: float) -> float:
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _corners(box: Box) -> tuple[float, float, float, float]:
    return box.x_min, box.y_min, max(box.x_min, box.x_max), max(box.y_min, box.y_max)


def _write_label(
    pen: ImageDraw.ImageDraw, box: Box, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, room: tuple[int, int]
) -> None:
    """Above the box; inside it where there is no room above; never outside of the picture."""
    text = f"{box.name} {box.score:.0%}"
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    margin = (bottom - top) // 4
    width, height = right - left + 2 * margin, bottom - top + 2 * margin
    x = max(0, min(box.x_min, room[0] - width))
    y = box.y_min - height if box.y_min >= height else box.y_min
    y = max(0, min(y, room[1] - height))
    paper = colour(box.index)
    pen.rectangle((x, y, x + width, y + height), fill=paper)
    pen.text((x + margin - left, y + margin - top), text, font=font, fill=ink(paper))
