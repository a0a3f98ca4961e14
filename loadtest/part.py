"""A part of the benchmark: who competes in what, and what becomes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from loadtest.contest import Taken
from loadtest.entrant import Task
from loadtest.rows import Row
from loadtest.untrained import Untrained


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    rounds: int
    threads: int
    beams: tuple[int, ...]
    at_once: tuple[int, ...]
    only: str = ""  # contestants whose name contains it


@dataclass(frozen=True, slots=True)
class Stage:
    """One task that all contestants get."""

    title: str
    work: str  # of one turn
    task: Task
    turn_seconds: float  # about, on two cores: for the plan alone
    prepare_seconds: float  # of all contestants together


class Part(ABC):
    name: ClassVar[str]
    what: ClassVar[str]
    module: ClassVar[str]  # where the contestants are at home
    contestants: ClassVar[tuple[str, ...]]
    slow: ClassVar[tuple[str, ...]] = ()  # one round is enough for them
    models: ClassVar[tuple[Untrained, ...]] = ()
    row: ClassVar[type[Row]]

    @abstractmethod
    def stages(self, options: Options) -> list[Stage]: ...

    @abstractmethod
    def rows(self, stage: Stage, taken: Sequence[Taken], when: str) -> list[Row]: ...

    def names(self, options: Options) -> list[str]:
        return [name for name in self.contestants if options.only in name]
