"""How good the models of the house are: numbers of an opened package, on what was held out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from export.menu.data import breakout, emoji
from export.menu.data.art import LEARNED, UNSEEN
from export.menu.data.definitions import Definitions
from export.menu.results import Numbers
from export.zoo.data.fashion import Fashion

Measure = Callable[[Any, int | None], Numbers]
ASKED = (1, 5, 10, 20, 40)  # returns


def _garments(served: Any, most: int | None) -> Numbers:
    return {"accuracy": Fashion().measure(served, most)}


def _topics(served: Any, most: int | None) -> Numbers:
    data = Definitions()
    return {"accuracy": data.measure(served, most), "always the most frequent topic": data.chance}


def _boxes(served: Any, most: int | None) -> Numbers:
    known, unseen = emoji.EmojiScenes(), emoji.EmojiScenes(UNSEEN)
    return {"mAP50": known.measure(served, most), "mAP50 in an art style never seen": unseen.measure(served, most)}


def _sentences(served: Any, most: int | None) -> Numbers:
    found: Numbers = {}
    for where, styles in (("", LEARNED), (" in an art style never seen", UNSEEN)):
        exact, kinds = emoji.told(served, emoji.EmojiCaptions(styles).held_out(most))
        found |= {f"exact{where}": exact, f"kinds right{where}": kinds}
    return found


def _returns(served: Any, most: int | None) -> Numbers:
    watched = breakout.WatchedBreakout().behaviour
    return {"mean return watched": float(np.mean([episode.rewards.sum() for episode in watched]))} | {
        f"mean return when {asked} is asked for": breakout.reached(served, asked, most or breakout.EPISODES)
        for asked in ASKED
    }


MEASURES: dict[str, Measure] = {
    "fashion-vit": _garments,
    "topics-bert": _topics,
    "emoji-detr": _boxes,
    "emoji-captioner": _sentences,
    "breakout-dt": _returns,
}
