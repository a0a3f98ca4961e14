"""A policy's step early and late in an episode: with a cache, the past should hardly cost anything."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from loadtest.contest import Taken, spread
from loadtest.part import Options, Part, Stage
from loadtest.rows import PolicyRow, Row
from loadtest.untrained import POLICY

POSITIONS = (5, 100)
_EPISODES = 60


class Policy(Part):
    name = "policy"
    what = "Decision Transformer (d 128, 3 layers, 1 head, state 17, action 6), random weights, one step of an episode"
    module = "loadtest.actors"
    contestants = ("headwaiter fp32",)
    models = (POLICY,)
    row = PolicyRow

    def stages(self, options: Options) -> list[Stage]:  # noqa: ARG002
        task = {"model": POLICY.name, "episodes": _EPISODES, "positions": POSITIONS}
        return [Stage("episodes", f"{_EPISODES} episodes of {max(POSITIONS)} steps", task, 7.0, 2.0)]

    def rows(self, stage: Stage, taken: Sequence[Taken], when: str) -> list[Row]:
        return [_row(each, place, stage.task["episodes"], when) for each in taken for place in range(len(POSITIONS))]


def _row(taken: Taken, place: int, episodes: int, when: str) -> PolicyRow:
    medians = [statistics.median(round_[place]) for round_ in taken.answers]
    return PolicyRow(
        contestant=taken.contestant,
        settings=taken.settings,
        rounds=len(medians),
        spread=spread(medians),
        when=when,
        position=POSITIONS[place],
        steps=episodes * len(medians),
        milliseconds=statistics.median(medians),
    )
