from __future__ import annotations

import pytest

from loadtest.contest import Contestant, ContestError, Taken, take_turns, turns
from loadtest.engine import not_installed
from loadtest.entrant import Task, fastest


class Recorded(Contestant):
    """Says in a common list when it is asked, and takes as long as it was told to."""

    def __init__(self, name: str, seconds: list[float], log: list[str], *, once: bool = False) -> None:
        self.name, self.once, self._seconds, self._log = name, once, iter(seconds), log

    def prepare(self, task: Task) -> str:
        self._log.append(f"{self.name} prepares")
        return f"ready for {task['items']}"

    def play(self, task: Task) -> tuple[float, list[int]]:
        self._log.append(self.name)
        return next(self._seconds), [task["items"]]


class Onlooker:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.turns = 0

    def tell(self, text: str) -> None:
        self.told.append(text)

    def turn_is_over(self) -> None:
        self.turns += 1


def test_contestants_take_turns_there_and_back_and_slow_ones_once() -> None:
    log: list[str] = []
    field = [Recorded("a", [3, 1, 2], log), Recorded("b", [6, 4, 5], log), Recorded("slow", [60], log, once=True)]
    onlooker = Onlooker()
    taken = take_turns(field, {"items": 7}, 3, onlooker)
    assert log == ["a prepares", "b prepares", "slow prepares", "a", "b", "slow", "b", "a", "a", "b"]
    assert [(each.contestant, each.median, each.settings) for each in taken] == [
        ("a", 2, "ready for 7"),
        ("b", 5, "ready for 7"),
        ("slow", 60, "ready for 7"),
    ]
    assert taken[0].spread == 3
    assert taken[1].answers == [[7]] * 3
    assert onlooker.turns == turns(["a", "b", "slow"], ["slow"], 3) == 7


@pytest.mark.parametrize(("seconds", "median", "spread"), [([2.0], 2.0, 1.0), ([1, 4], 2.5, 4.0), ([9, 1, 3], 3, 9.0)])
def test_medians_and_spreads(seconds: list[float], median: float, spread: float) -> None:
    taken = Taken("a", "", seconds)
    assert (taken.median, taken.spread) == (median, spread)


def test_one_that_cannot_start_says_why() -> None:
    with pytest.raises(ContestError, match=r"(?s)nobody fp32 ended early.*KeyError"):
        Contestant("nobody fp32", "loadtest.actors", 1)


def test_a_single_way_is_not_tried() -> None:
    assert fastest([4], lambda way: pytest.fail(f"{way} was tried")) == 4


def test_every_way_is_tried_once_and_the_best_two_again() -> None:
    tried: list[int] = []
    fastest([1, 2, 3, 4], tried.append)
    assert tried[:4] == [1, 2, 3, 4]
    assert len(set(tried[4:])) == len(tried[4:]) == 2


def test_who_is_not_there_is_known_before_anyone_runs() -> None:
    assert not_installed(["headwaiter fp32", "soup fp32", "onnxruntime int8", "soup int8"]) == ["soup"]
