"""What a scene of emoji shows, in words: `a dog to the left of two pizzas`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from export.menu.data.art import KINDS
from export.menu.data.composing import Thing

LEFT_OF, ABOVE = "to the left of", "above"
_COUNTS = ("two", "three", "four", "five", "six")
_PLURALS = {kind: f"{kind}s" for kind in KINDS} | {"butterfly": "butterflies", "fish": "fish"}
_CLEARLY = 0.1  # of the picture: what is less far apart is neither left nor above

VOCABULARY = tuple(dict.fromkeys(["a", "an", *_COUNTS, *LEFT_OF.split(), ABOVE, "and", *KINDS, *_PLURALS.values()]))
SINGULAR = {word: kind for kind, plural in _PLURALS.items() for word in (kind, plural)}


def tell(things: Sequence[Thing]) -> str:
    """Two kinds are told by where they are, three in the order of the alphabet."""
    groups = Counter(thing.kind for thing in things)
    kinds, link = sorted(groups), "and"
    if len(groups) == 2:
        gaps = _gaps(things)
        axis, second_is_first = divmod(int(gaps.argmax()), 2)
        kinds, link = kinds[:: -1 if second_is_first else 1], (LEFT_OF, ABOVE)[axis]
    return f" {link} ".join(_counted(kind, groups[kind]) for kind in kinds)


def clear(things: Sequence[Thing]) -> bool:
    """Whether what `tell` says is no matter of opinion: all of one kind are clearly left of the other or above it, and
    one of the two more so."""
    if len({thing.kind for thing in things}) != 2:
        return True
    across, down = _gaps(things).max(1).clip(0)
    return bool(max(across, down) >= _CLEARLY and abs(across - down) >= _CLEARLY)


def kinds_in(text: str) -> set[str]:
    return {SINGULAR[word] for word in text.split() if word in SINGULAR}


def _gaps(things: Sequence[Thing]) -> NDArray[np.float64]:
    """[axis, order]: how far all of the first kind, in the order of the alphabet, are before all of the second, and the
    other way round; negative where they are not."""
    first, second = (
        np.array([(thing.x, thing.y) for thing in things if thing.kind == kind])
        for kind in sorted({thing.kind for thing in things})
    )
    return np.stack([second.min(0) - first.max(0), first.min(0) - second.max(0)], 1)


def _counted(kind: str, count: int) -> str:
    if count > 1:
        return f"{_COUNTS[count - 2]} {_PLURALS[kind]}"
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
