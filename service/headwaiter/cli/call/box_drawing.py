"""Draws detected boxes on an image."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import TYPE_CHECKING

from headwaiter.client.errors import InvalidInput
from headwaiter.client.results import Box, DetectionResult

if TYPE_CHECKING:
    from PIL import ImageDraw, ImageFont

_GOLDEN_ANGLE = 0.618034  # hue step that keeps the colours of neighbouring classes apart
_MIN_FONT_SIZE = 12


def check_image_path(target: Path) -> None:
    """Raise InvalidInput unless `target` has an image extension, its directory exists and pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        raise InvalidInput("--save needs pillow: pip install pillow", field="save") from None
    if target.suffix.lower() not in Image.registered_extensions():
        raise InvalidInput(f"{target} has no image extension; use .png or .jpg", field="save")
    if not target.absolute().parent.is_dir():
        raise InvalidInput(f"{target} cannot be written; its directory does not exist", field="save")


def draw_boxes(source: Path, result: DetectionResult, target: Path) -> None:
    """Write a copy of `source` with its boxes to `target`. Boxes with higher scores are drawn last."""
    from PIL import Image, ImageDraw, ImageFont, ImageOps

    with Image.open(source) as original:
        image = ImageOps.exif_transpose(original).convert("RGB")
    font_size = max(_MIN_FONT_SIZE, min(image.size) // 32)
    font = ImageFont.load_default(font_size)
    draw = ImageDraw.Draw(image)
    for box in reversed(result.boxes):
        draw.rectangle(_corners(box), outline=class_colour(box.index), width=max(2, font_size // 6))
    for box in reversed(result.boxes):
        _draw_label(draw, box, font, image.size)
    image.save(target)


def class_colour(index: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hls_to_rgb(index * _GOLDEN_ANGLE % 1, 0.45, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def text_colour(background: tuple[int, int, int]) -> str:
    """Return black or white, whichever has the higher WCAG contrast; it exceeds 4.5 on every class colour."""
    red, green, blue = (_linear_rgb(value / 255) for value in background)
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


def _linear_rgb(value: float) -> float:
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _corners(box: Box) -> tuple[float, float, float, float]:
    return box.x_min, box.y_min, max(box.x_min, box.x_max), max(box.y_min, box.y_max)


def _draw_label(
    draw: ImageDraw.ImageDraw, box: Box, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, image_size: tuple[int, int]
) -> None:
    """Draw the label above the box, or inside it if there is no space above; it never leaves the image."""
    text = f"{box.name} {box.score:.0%}"
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    margin = (bottom - top) // 4
    width, height = right - left + 2 * margin, bottom - top + 2 * margin
    x = max(0, min(box.x_min, image_size[0] - width))
    y = box.y_min - height if box.y_min >= height else box.y_min
    y = max(0, min(y, image_size[1] - height))
    background = class_colour(box.index)
    draw.rectangle((x, y, x + width, y + height), fill=background)
    draw.text((x + margin - left, y + margin - top), text, font=font, fill=text_colour(background))
