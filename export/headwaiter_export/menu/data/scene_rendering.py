"""Rendering of emoji scenes: random placement, rotation, color jitter, partial overlap and varied backgrounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headwaiter_export.menu.data.emoji_art import CLASSES
from headwaiter_export.zoo.data.shape_scenes import Corners

Art = Mapping[tuple[str, str], Image.Image]
"""Drawings by style and class."""

MAX_OBJECTS = 6
_EXTENT = (0.18, 0.42)  # longer side relative to the image
_TILT = 25  # maximum tilt in degrees
_MARGIN = 0.58  # minimum distance of a center from the edge, relative to the extent
# Between two centers, relative to the sum of half their extents; about a fifth of an object may be covered.
_MIN_DISTANCE = 0.62


@dataclass(frozen=True, slots=True)
class SceneObject:
    """Positions are relative to the image. `corners`, in pixels, is set when the object is rendered."""

    kind: str
    style: str
    x: float
    y: float
    extent: float
    tilt: float
    mirrored: bool
    corners: Corners = (0.0, 0.0, 0.0, 0.0)


def compose(rng: np.random.Generator, styles: Sequence[str], max_classes: int | None = None) -> list[SceneObject]:
    """Return one to six objects of at most `max_classes` classes."""
    count = int(rng.integers(1, MAX_OBJECTS + 1))
    names = rng.choice(list(CLASSES), max_classes or int(rng.integers(1, count + 1)), replace=False).tolist()
    objects: list[SceneObject] = []
    while len(objects) < count:
        obj = _random_object(rng, names, styles)
        if all(_is_separate(obj, other) for other in objects):
            objects.append(obj)
    return objects


def _random_object(rng: np.random.Generator, classes: Sequence[str], styles: Sequence[str]) -> SceneObject:
    extent = float(rng.uniform(*_EXTENT))
    x, y = rng.uniform(_MARGIN * extent, 1 - _MARGIN * extent, 2).tolist()
    kind, style = (names[int(rng.integers(len(names)))] for names in (classes, styles))
    return SceneObject(kind, style, x, y, extent, float(rng.uniform(-_TILT, _TILT)), bool(rng.integers(2)))


def _is_separate(one: SceneObject, other: SceneObject) -> bool:
    return hypot(one.x - other.x, one.y - other.y) > _MIN_DISTANCE * (one.extent + other.extent) / 2


def draw(
    rng: np.random.Generator, size: int, objects: Sequence[SceneObject], art: Art
) -> tuple[Image.Image, list[SceneObject]]:
    """Return the image and the objects with their corners in pixels. Later objects cover earlier ones."""
    picture, placed = Image.fromarray(_background(rng, size)), []
    for obj in objects:
        drawing = _jitter_color(rng, _transform(art[obj.style, obj.kind], obj, size))
        left, top = (round(size * center - side / 2) for center, side in zip((obj.x, obj.y), drawing.size, strict=True))
        picture.paste(drawing, (left, top), drawing)
        right, bottom = left + drawing.width, top + drawing.height
        placed.append(replace(obj, corners=(max(left, 0), max(top, 0), min(right, size), min(bottom, size))))
    return picture, placed


def _transform(drawing: Image.Image, obj: SceneObject, size: int) -> Image.Image:
    scale = size * obj.extent / max(drawing.size)
    if obj.mirrored:
        drawing = drawing.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    resized = drawing.resize((max(1, round(drawing.width * scale)), max(1, round(drawing.height * scale))))
    rotated = resized.rotate(obj.tilt, Image.Resampling.BILINEAR, expand=True)
    return rotated.crop(rotated.getchannel("A").point(lambda alpha: 255 * (alpha > 64)).getbbox())


def _jitter_color(rng: np.random.Generator, drawing: Image.Image) -> Image.Image:
    """Change brightness, saturation and tint at random."""
    pixels = np.asarray(drawing, np.float32)
    colors, gray = pixels[..., :3], pixels[..., :3].mean(2, keepdims=True)
    jittered = (gray + rng.uniform(0.6, 1.3) * (colors - gray)) * rng.uniform(0.75, 1.2) + rng.uniform(-15, 15, 3)
    return Image.fromarray(np.concatenate([jittered.clip(0, 255), pixels[..., 3:]], 2).astype(np.uint8))


def _background(rng: np.random.Generator, size: int) -> NDArray[np.uint8]:
    """Two colors mixed in a gradient, stripes or blotches, with noise."""
    first, second = rng.integers(20, 236, (2, 3))
    mix = _BACKGROUNDS[rng.integers(len(_BACKGROUNDS))](rng, size)[:, :, None]
    noise = rng.normal(0, rng.uniform(1, 9), (size, size, 1))
    colors: NDArray[np.float64] = first + mix * (second - first) + noise
    return colors.clip(0, 255).astype(np.uint8)


def _gradient(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    angle, offsets = rng.uniform(0, 2 * np.pi), np.linspace(-0.5, 0.5, size)
    mix: NDArray[np.float64] = 0.5 + 0.7 * (np.cos(angle) * offsets[None] + np.sin(angle) * offsets[:, None])
    return mix


def _stripes(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    waves = 0.5 + 0.5 * np.sin(rng.uniform(10, 60) * _gradient(rng, size))
    return waves if rng.integers(2) else (waves > 0.5).astype(np.float64)


def _blotches(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    side = int(rng.integers(2, 9))
    coarse = Image.fromarray(rng.random((side, side), np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), np.float64)


_BACKGROUNDS = (_gradient, _stripes, _blotches)
