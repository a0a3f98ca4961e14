"""Scenes of coloured shapes: composed at random, drawn, and told in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Corners = tuple[float, float, float, float]  # left, top, right, bottom

COLOURS = {"red": (205, 45, 45), "green": (45, 160, 65), "blue": (50, 80, 205), "yellow": (230, 205, 45)}
LEFT_OF, ABOVE = "left of", "above"
_RADIUS = (0.08, 0.17)  # of the picture's size
_TILT = 0.3  # radians to either side, at most
_NEAREST = 0.8  # distance of two centres, of the sum of their radii: corners may overlap
_CLEARLY = 0.1  # of the picture's size: what is nearer than that is neither left nor right


def _around(corners: int, *radii: float, start: float = -np.pi / 2) -> NDArray[np.float64]:
    """Points at equal angles, at radii that repeat."""
    angles = start + 2 * np.pi * np.arange(corners) / corners
    return np.resize(radii, corners)[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)


OUTLINES = {
    "circle": _around(32, 1.0),
    "square": _around(4, 1.2, start=np.pi / 4),
    "triangle": _around(3, 1.15),
    "star": _around(10, 1.15, 0.45),
}


@dataclass(frozen=True, slots=True)
class Shape:
    kind: str
    colour: str
    x: float  # in pixels, as all of these
    y: float
    radius: float
    tilt: float

    @property
    def outline(self) -> NDArray[np.float64]:
        cosine, sine = np.cos(self.tilt), np.sin(self.tilt)
        turned = OUTLINES[self.kind] @ np.array([[cosine, sine], [-sine, cosine]])
        return (self.x, self.y) + self.radius * turned

    @property
    def corners(self) -> Corners:
        """Of the smallest box around it."""
        (left, top), (right, bottom) = self.outline.min(0).tolist(), self.outline.max(0).tolist()
        return left, top, right, bottom


def compose(rng: np.random.Generator, size: int, count: int) -> list[Shape]:
    """So many shapes, all of them within a picture of `size`, none hidden behind another."""
    shapes: list[Shape] = []
    while len(shapes) < count:
        shape = _any(rng, size)
        if all(_apart(shape, other) for other in shapes):
            shapes.append(shape)
    return shapes


def _any(rng: np.random.Generator, size: int) -> Shape:
    kind, colour = (tuple(names)[rng.integers(len(names))] for names in (OUTLINES, COLOURS))
    radius = size * rng.uniform(*_RADIUS)
    margin = 1.2 * radius
    x, y = rng.uniform(margin, size - margin, 2).tolist()
    return Shape(kind, colour, x, y, radius, rng.uniform(-_TILT, _TILT))


def _apart(one: Shape, other: Shape) -> bool:
    return bool(np.hypot(one.x - other.x, one.y - other.y) > _NEAREST * (one.radius + other.radius))


def draw(rng: np.random.Generator, size: int, shapes: Sequence[Shape]) -> Image.Image:
    """Later shapes lie over earlier ones; the background is a grainy transition between two dull colours."""
    picture = Image.fromarray(_background(rng, size))
    canvas = ImageDraw.Draw(picture)
    for shape in shapes:
        shade = np.clip(COLOURS[shape.colour] + rng.integers(-25, 26, 3), 0, 255).tolist()
        canvas.polygon([tuple(point) for point in shape.outline.tolist()], fill=tuple(shade))
    return picture


def _background(rng: np.random.Generator, size: int) -> NDArray[np.uint8]:
    first, second = rng.integers(50, 200, (2, 1)) + rng.integers(-20, 21, (2, 3))
    angle, places = rng.uniform(0, 2 * np.pi), np.linspace(-0.5, 0.5, size)
    share = 0.5 + 0.7 * (np.cos(angle) * places[None] + np.sin(angle) * places[:, None])
    grain = rng.integers(-8, 9, (size, size, 1), dtype=np.int8)
    colours: NDArray[np.float64] = first + share[:, :, None] * (second - first) + grain
    return colours.clip(0, 255).astype(np.uint8)


def tell(shapes: Sequence[Shape]) -> str:
    """`a red circle left of a blue square`: rightwards or downwards, whichever way the scene extends."""
    places = _places(shapes)
    axis = _longer_axis(places)
    ordered = [shapes[index] for index in places[:, axis].argsort()]
    return f" {(LEFT_OF, ABOVE)[axis]} ".join(f"a {shape.colour} {shape.kind}" for shape in ordered)


def clear(size: int, shapes: Sequence[Shape]) -> bool:
    """Whether what `tell` says is no matter of opinion: neither the order of the shapes nor the way they extend."""
    if len(shapes) == 1:
        return True
    places = _places(shapes)
    steps = np.diff(np.sort(places[:, _longer_axis(places)]))
    across, down = np.ptp(places, axis=0)
    return bool(min(abs(across - down), *steps) >= _CLEARLY * size)


def _places(shapes: Sequence[Shape]) -> NDArray[np.float64]:
    return np.array([(shape.x, shape.y) for shape in shapes])


def _longer_axis(places: NDArray[np.float64]) -> int:
    return int(np.ptp(places, axis=0).argmax())
