"""Contestants in processes of their own take turns, so that what else happens on the machine falls on all alike."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.entrant import Task


class ContestError(Exception):
    """A contestant gave up."""


class Watch(Protocol):
    """Whoever looks on."""

    def tell(self, text: str) -> None:
        """What is being done."""

    def turn_is_over(self) -> None: ...


class Contestant:
    """One process; `once` for those so slow that one round shows it."""

    def __init__(self, name: str, module: str, threads: int, *, once: bool = False) -> None:
        self.name, self.once = name, once
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, name, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.versions: dict[str, str] = self._read()

    def prepare(self, task: Task) -> str:
        return str(self._ask({"prepare": task}))

    def play(self, task: Task) -> tuple[float, Any]:
        reply = self._ask({"play": task})
        return reply["seconds"], reply["answer"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._errors.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ask(self, request: dict[str, Task]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._errors.seek(0)
        raise ContestError(f"{self.name} ended early:\n{self._errors.read()[-2000:]}")


@dataclass(slots=True)
class Taken:
    """What one contestant took in all rounds of one task, and what it answered."""

    contestant: str
    settings: str
    seconds: list[float] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        return spread(self.seconds)


def spread(values: Sequence[float]) -> float:
    """The largest over the smallest."""
    return max(values) / min(values)


@contextmanager
def entered(
    names: Sequence[str], module: str, threads: int, slow: Sequence[str], watch: Watch
) -> Iterator[list[Contestant]]:
    with ExitStack() as stack:
        contestants = []
        for name in names:
            watch.tell(f"{name} starts")
            contestants.append(Contestant(name, module, threads, once=name in slow))
            stack.callback(contestants[-1].kill)
        yield contestants
        for each in contestants:
            each.close()


def turns(names: Sequence[str], slow: Sequence[str], rounds: int) -> int:
    """How many there are for one task."""
    return sum(1 if name in slow else rounds for name in names)


def take_turns(contestants: Sequence[Contestant], task: Task, rounds: int, watch: Watch) -> list[Taken]:
    """Every other round goes backwards, so that nobody always follows the same one."""
    taken = {}
    for each in contestants:
        watch.tell(f"{each.name} prepares")
        taken[each.name] = Taken(each.name, each.prepare(task))
    for index in range(rounds):
        for each in contestants[:: -1 if index % 2 else 1]:
            if each.once and index:
                continue
            watch.tell(f"{each.name}, round {index + 1}")
            seconds, answer = each.play(task)
            taken[each.name].seconds.append(seconds)
            taken[each.name].answers.append(answer)
            watch.turn_is_over()
    return list(taken.values())
