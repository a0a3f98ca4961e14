"""Evaluators of the built-in models: metrics of an opened package on held-out data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headwaiter_export.menu.data import breakout, emoji
from headwaiter_export.menu.data.definitions import Definitions
from headwaiter_export.menu.data.emoji_art import TRAINING_STYLES, UNSEEN_STYLES
from headwaiter_export.menu.results import Metrics
from headwaiter_export.zoo.data.fashion import Fashion

Evaluator = Callable[[Any, int | None], Metrics]
TARGET_RETURNS = (1, 5, 10, 20, 40)  # returns


def _garments(served: Any, max_examples: int | None) -> Metrics:
    return {"accuracy": Fashion().evaluate(served, max_examples)}


def _topics(served: Any, max_examples: int | None) -> Metrics:
    data = Definitions()
    return {"accuracy": data.evaluate(served, max_examples), "majority-class baseline": data.chance_level}


def _boxes(served: Any, max_examples: int | None) -> Metrics:
    known, unseen = emoji.EmojiScenes(), emoji.EmojiScenes(UNSEEN_STYLES)
    return {
        "mAP50": known.evaluate(served, max_examples),
        "mAP50 in an unseen art style": unseen.evaluate(served, max_examples),
    }


def _sentences(served: Any, max_examples: int | None) -> Metrics:
    metrics: Metrics = {}
    for suffix, styles in (("", TRAINING_STYLES), (" in an unseen art style", UNSEEN_STYLES)):
        exact_share, correct_share = emoji.evaluate_captions(served, emoji.EmojiCaptions(styles).held_out(max_examples))
        metrics |= {f"exact{suffix}": exact_share, f"classes correct{suffix}": correct_share}
    return metrics


def _returns(served: Any, max_examples: int | None) -> Metrics:
    demonstrations = breakout.BreakoutDemonstrations().training_episodes
    return {"mean return of demonstrations": float(np.mean([episode.rewards.sum() for episode in demonstrations]))} | {
        f"mean return at target return {target_return}": breakout.mean_return(
            served, target_return, max_examples or breakout.EPISODES
        )
        for target_return in TARGET_RETURNS
    }


EVALUATORS: dict[str, Evaluator] = {
    "fashion-vit": _garments,
    "topics-bert": _topics,
    "emoji-detr": _boxes,
    "emoji-captioner": _sentences,
    "breakout-dt": _returns,
}
