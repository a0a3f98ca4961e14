"""Texts and pictures as they come: of very different lengths and sizes, the same ones every time."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from loadtest.sentences import sentences

_PICTURES, _SENTENCES = 48, 256
_SIZES = ((160, 120), (320, 240), (640, 480), (1024, 768), (1600, 1200))
_SHARES = (0.2, 0.25, 0.35, 0.15, 0.05)  # of the sizes
_DETAIL = 20  # pixels: what is in a photograph is larger than a pixel

TEXTS = (
    "The soup was cold.",
    "Nobody told us that the kitchen closes at nine on Sundays.",
    "Two more glasses of water, please.",
    "The new engine is quieter than the old one, but it needs more oil and the manual does not say which kind.",
    "Shares of the company fell by a tenth after the report was published on Tuesday morning.",
    "A late goal decided the match.",
    "Researchers found that the smallest of the three moons has an ocean under its ice.",
    "Can you move our reservation to half past seven?",
    "The committee will meet again next month to decide whether the bridge should be repaired or replaced.",
    "Great service, and the dessert was worth the trip.",
    "My order arrived broken, and I would like my money back.",
    "Rain is expected in the north, while the south stays dry until the weekend.",
)


@dataclass(frozen=True, slots=True)
class Picture:
    width: int
    height: int
    data: bytes


@cache
def chinese() -> list[str]:
    return sentences(_SENTENCES)


@cache
def photographs(size: tuple[int, int] | None = None) -> list[Picture]:
    """JPEG files of usual sizes, or all of one size."""
    rng = np.random.default_rng(_PICTURES)
    chosen = rng.choice(len(_SIZES), _PICTURES, p=_SHARES)
    return [_photograph(*(size or _SIZES[each]), rng) for each in chosen]


def _photograph(width: int, height: int, rng: np.random.Generator) -> Picture:
    coarse = rng.integers(0, 256, (height // _DETAIL + 2, width // _DETAIL + 2, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR).save(file, "JPEG")
    return Picture(width, height, file.getvalue())
