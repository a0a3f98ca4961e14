"""Captions of emoji scenes: `a dog to the left of two pizzas`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwaiter_export.menu.data.emoji_art import CLASSES
from headwaiter_export.menu.data.scene_rendering import SceneObject

LEFT_OF, ABOVE = "to the left of", "above"
_COUNTS = ("two", "three", "four", "five", "six")
_PLURALS = {kind: f"{kind}s" for kind in CLASSES} | {"butterfly": "butterflies", "fish": "fish"}
_MIN_SEPARATION = 0.1  # relative to the image; groups closer than this are neither left of nor above each other

VOCABULARY = tuple(dict.fromkeys(["a", "an", *_COUNTS, *LEFT_OF.split(), ABOVE, "and", *CLASSES, *_PLURALS.values()]))
SINGULAR = {word: kind for kind, plural in _PLURALS.items() for word in (kind, plural)}


def describe_scene(objects: Sequence[SceneObject]) -> str:
    """Two classes are described by their relative position, three in alphabetical order."""
    counts = Counter(obj.kind for obj in objects)
    names, link = sorted(counts), "and"
    if len(counts) == 2:
        gaps = _gaps(objects)
        axis, swapped = divmod(int(gaps.argmax()), 2)
        names, link = names[:: -1 if swapped else 1], (LEFT_OF, ABOVE)[axis]
    return f" {link} ".join(_noun_phrase(name, counts[name]) for name in names)


def is_unambiguous(objects: Sequence[SceneObject]) -> bool:
    """Whether the caption is unique: all objects of one class are clearly left of or above the other, and one of the
    two directions dominates."""
    if len({obj.kind for obj in objects}) != 2:
        return True
    across, down = _gaps(objects).max(1).clip(0)
    return bool(max(across, down) >= _MIN_SEPARATION and abs(across - down) >= _MIN_SEPARATION)


def classes_in(text: str) -> set[str]:
    """Classes that a caption names."""
    return {SINGULAR[word] for word in text.split() if word in SINGULAR}


def _gaps(objects: Sequence[SceneObject]) -> NDArray[np.float64]:
    """Gaps [axis, order] by which all objects of the alphabetically first class precede those of the second, and vice
    versa; negative if they do not."""
    first, second = (
        np.array([(obj.x, obj.y) for obj in objects if obj.kind == kind])
        for kind in sorted({obj.kind for obj in objects})
    )
    return np.stack([second.min(0) - first.max(0), first.min(0) - second.max(0)], 1)


def _noun_phrase(name: str, count: int) -> str:
    if count > 1:
        return f"{_COUNTS[count - 2]} {_PLURALS[name]}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
