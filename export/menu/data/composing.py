"""Scenes of emoji: placed at random, turned, tinted, partly over each other, on backgrounds of many sorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from export.menu.data.art import KINDS
from export.zoo.data.drawing import Corners

Art = Mapping[tuple[str, str], Image.Image]
"""Drawings, by style and kind."""

MOST = 6
_EXTENT = (0.18, 0.42)  # of the longer side, as a share of the picture
_TILT = 25  # degrees to either side, at most
_MARGIN = 0.58  # of the extent: how near to the edge a centre may be
_NEAREST = 0.62  # distance of two centres, as a share of the sum of half their extents: about a fifth may be covered


@dataclass(frozen=True, slots=True)
class Thing:
    """Places are shares of the picture. The corners are known once it is drawn."""

    kind: str
    style: str
    x: float
    y: float
    extent: float
    tilt: float
    mirrored: bool
    corners: Corners = (0.0, 0.0, 0.0, 0.0)


def compose(rng: np.random.Generator, styles: Sequence[str], most_kinds: int | None = None) -> list[Thing]:
    """One to six things, of at most so many kinds."""
    count = int(rng.integers(1, MOST + 1))
    kinds = rng.choice(list(KINDS), most_kinds or int(rng.integers(1, count + 1)), replace=False).tolist()
    things: list[Thing] = []
    while len(things) < count:
        thing = _any(rng, kinds, styles)
        if all(_apart(thing, other) for other in things):
            things.append(thing)
    return things


def _any(rng: np.random.Generator, kinds: Sequence[str], styles: Sequence[str]) -> Thing:
    extent = float(rng.uniform(*_EXTENT))
    x, y = rng.uniform(_MARGIN * extent, 1 - _MARGIN * extent, 2).tolist()
    kind, style = (names[int(rng.integers(len(names)))] for names in (kinds, styles))
    return Thing(kind, style, x, y, extent, float(rng.uniform(-_TILT, _TILT)), bool(rng.integers(2)))


def _apart(one: Thing, other: Thing) -> bool:
    return hypot(one.x - other.x, one.y - other.y) > _NEAREST * (one.extent + other.extent) / 2


def draw(rng: np.random.Generator, size: int, things: Sequence[Thing], art: Art) -> tuple[Image.Image, list[Thing]]:
    """The picture, and the things with their corners in pixels; later ones lie over earlier ones."""
    picture, placed = Image.fromarray(_background(rng, size)), []
    for thing in things:
        drawing = _tinted(rng, _turned(art[thing.style, thing.kind], thing, size))
        left, top = (
            round(size * centre - side / 2) for centre, side in zip((thing.x, thing.y), drawing.size, strict=True)
        )
        picture.paste(drawing, (left, top), drawing)
        right, bottom = left + drawing.width, top + drawing.height
        placed.append(replace(thing, corners=(max(left, 0), max(top, 0), min(right, size), min(bottom, size))))
    return picture, placed


def _turned(drawing: Image.Image, thing: Thing, size: int) -> Image.Image:
    scale = size * thing.extent / max(drawing.size)
    if thing.mirrored:
        drawing = drawing.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    small = drawing.resize((max(1, round(drawing.width * scale)), max(1, round(drawing.height * scale))))
    turned = small.rotate(thing.tilt, Image.Resampling.BILINEAR, expand=True)
    return turned.crop(turned.getchannel("A").point(lambda alpha: 255 * (alpha > 64)).getbbox())


def _tinted(rng: np.random.Generator, drawing: Image.Image) -> Image.Image:
    """Brighter or darker, paler or stronger, and a little towards some colour."""
    pixels = np.asarray(drawing, np.float32)
    colours, grey = pixels[..., :3], pixels[..., :3].mean(2, keepdims=True)
    tinted = (grey + rng.uniform(0.6, 1.3) * (colours - grey)) * rng.uniform(0.75, 1.2) + rng.uniform(-15, 15, 3)
    return Image.fromarray(np.concatenate([tinted.clip(0, 255), pixels[..., 3:]], 2).astype(np.uint8))


def _background(rng: np.random.Generator, size: int) -> NDArray[np.uint8]:
    """Two colours mixed along a line, in stripes, or in blotches; grain over it."""
    first, second = rng.integers(20, 236, (2, 3))
    share = _MIXTURES[rng.integers(len(_MIXTURES))](rng, size)[:, :, None]
    grain = rng.normal(0, rng.uniform(1, 9), (size, size, 1))
    colours: NDArray[np.float64] = first + share * (second - first) + grain
    return colours.clip(0, 255).astype(np.uint8)


def _along(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    angle, places = rng.uniform(0, 2 * np.pi), np.linspace(-0.5, 0.5, size)
    share: NDArray[np.float64] = 0.5 + 0.7 * (np.cos(angle) * places[None] + np.sin(angle) * places[:, None])
    return share


def _stripes(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    waves = 0.5 + 0.5 * np.sin(rng.uniform(10, 60) * _along(rng, size))
    return waves if rng.integers(2) else (waves > 0.5).astype(np.float64)


def _blotches(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    side = int(rng.integers(2, 9))
    few = Image.fromarray(rng.random((side, side), np.float32))
    return np.asarray(few.resize((size, size), Image.Resampling.BICUBIC), np.float64)


_MIXTURES = (_along, _stripes, _blotches)
