"""Scenes of colored shapes: random composition, rendering and description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Corners = tuple[float, float, float, float]  # left, top, right, bottom

COLOURS = {"red": (205, 45, 45), "green": (45, 160, 65), "blue": (50, 80, 205), "yellow": (230, 205, 45)}
LEFT_OF, ABOVE = "left of", "above"
_RADIUS = (0.08, 0.17)  # relative to the image size
_TILT = 0.3  # maximum tilt in radians
_MIN_DISTANCE = 0.8  # between two centers, relative to the sum of their radii; corners may overlap
_MIN_SEPARATION = 0.1  # relative to the image size; shapes closer than this are neither left of nor above each other


def _polygon(corners: int, *radii: float, start: float = -np.pi / 2) -> NDArray[np.float64]:
    """Points at equal angles; the radii repeat."""
    angles = start + 2 * np.pi * np.arange(corners) / corners
    return np.resize(radii, corners)[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)


OUTLINES = {
    "circle": _polygon(32, 1.0),
    "square": _polygon(4, 1.2, start=np.pi / 4),
    "triangle": _polygon(3, 1.15),
    "star": _polygon(10, 1.15, 0.45),
}


@dataclass(frozen=True, slots=True)
class Shape:
    kind: str
    colour: str
    x: float  # in pixels, like y and radius
    y: float
    radius: float
    tilt: float

    @property
    def outline(self) -> NDArray[np.float64]:
        cosine, sine = np.cos(self.tilt), np.sin(self.tilt)
        rotated = OUTLINES[self.kind] @ np.array([[cosine, sine], [-sine, cosine]])
        return (self.x, self.y) + self.radius * rotated

    @property
    def corners(self) -> Corners:
        """Corners of the bounding box."""
        (left, top), (right, bottom) = self.outline.min(0).tolist(), self.outline.max(0).tolist()
        return left, top, right, bottom


def compose(rng: np.random.Generator, size: int, count: int) -> list[Shape]:
    """Return `count` shapes inside an image of `size` pixels that do not hide each other."""
    shapes: list[Shape] = []
    while len(shapes) < count:
        shape = _random_object(rng, size)
        if all(_is_separate(shape, other) for other in shapes):
            shapes.append(shape)
    return shapes


def _random_object(rng: np.random.Generator, size: int) -> Shape:
    kind, colour = (tuple(names)[rng.integers(len(names))] for names in (OUTLINES, COLOURS))
    radius = size * rng.uniform(*_RADIUS)
    margin = 1.2 * radius
    x, y = rng.uniform(margin, size - margin, 2).tolist()
    return Shape(kind, colour, x, y, radius, rng.uniform(-_TILT, _TILT))


def _is_separate(one: Shape, other: Shape) -> bool:
    return bool(np.hypot(one.x - other.x, one.y - other.y) > _MIN_DISTANCE * (one.radius + other.radius))


def draw(rng: np.random.Generator, size: int, shapes: Sequence[Shape]) -> Image.Image:
    """Render the shapes in order over a noisy gradient between two muted colors."""
    picture = Image.fromarray(_background(rng, size))
    canvas = ImageDraw.Draw(picture)
    for shape in shapes:
        shade = np.clip(COLOURS[shape.colour] + rng.integers(-25, 26, 3), 0, 255).tolist()
        canvas.polygon([tuple(point) for point in shape.outline.tolist()], fill=tuple(shade))
    return picture


def _background(rng: np.random.Generator, size: int) -> NDArray[np.uint8]:
    first, second = rng.integers(50, 200, (2, 1)) + rng.integers(-20, 21, (2, 3))
    angle, offsets = rng.uniform(0, 2 * np.pi), np.linspace(-0.5, 0.5, size)
    mix = 0.5 + 0.7 * (np.cos(angle) * offsets[None] + np.sin(angle) * offsets[:, None])
    grain = rng.integers(-8, 9, (size, size, 1), dtype=np.int8)
    colours: NDArray[np.float64] = first + mix[:, :, None] * (second - first) + grain
    return colours.clip(0, 255).astype(np.uint8)


def describe_scene(shapes: Sequence[Shape]) -> str:
    """Describe the scene along its longer axis, rightwards or downwards: `a red circle left of a blue square`."""
    centers = _centers(shapes)
    axis = _longer_axis(centers)
    ordered = [shapes[index] for index in centers[:, axis].argsort()]
    return f" {(LEFT_OF, ABOVE)[axis]} ".join(f"a {shape.colour} {shape.kind}" for shape in ordered)


def is_unambiguous(size: int, shapes: Sequence[Shape]) -> bool:
    """Whether the description is unique: the order of the shapes and the longer axis are clear."""
    if len(shapes) == 1:
        return True
    centers = _centers(shapes)
    gaps = np.diff(np.sort(centers[:, _longer_axis(centers)]))
    across, down = np.ptp(centers, axis=0)
    return bool(min(abs(across - down), *gaps) >= _MIN_SEPARATION * size)


def _centers(shapes: Sequence[Shape]) -> NDArray[np.float64]:
    return np.array([(shape.x, shape.y) for shape in shapes])


def _longer_axis(centers: NDArray[np.float64]) -> int:
    return int(np.ptp(centers, axis=0).argmax())
