"""Deterministic sample texts and images of very different lengths and sizes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from loadtest.sentences import sentences

_IMAGES, _SENTENCES = 48, 256
_SIZES = ((160, 120), (320, 240), (640, 480), (1024, 768), (1600, 1200))
_SHARES = (0.2, 0.25, 0.35, 0.15, 0.05)  # probability of each size
_DETAIL = 20  # pixels per random colour, so that JPEG compresses as it does photographs

TEXTS = (
    "The soup was cold.",
    "We did not know that the kitchen closes at nine on Sundays.",
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
class SampleImage:
    width: int
    height: int
    data: bytes


@cache
def chinese_sentences() -> list[str]:
    return sentences(_SENTENCES)


@cache
def sample_photos(size: tuple[int, int] | None = None) -> list[SampleImage]:
    """Return JPEG images of common sizes, or all of one size."""
    rng = np.random.default_rng(_IMAGES)
    indices = rng.choice(len(_SIZES), _IMAGES, p=_SHARES)
    return [_sample_photo(*(size or _SIZES[index]), rng) for index in indices]


def _sample_photo(width: int, height: int, rng: np.random.Generator) -> SampleImage:
    coarse = rng.integers(0, 256, (height // _DETAIL + 2, width // _DETAIL + 2, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR).save(file, "JPEG")
    return SampleImage(width, height, file.getvalue())
