"""What was measured: a row for each contestant in each setting. Rows of one setting come from one run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(ABC):
    contestant: str  # engine and precision
    settings: str  # as the contestant chose them
    rounds: int
    spread: float  # of the rounds: the largest over the smallest
    when: str

    @property
    def engine(self) -> str:
        return self.contestant.split()[0]

    @property
    def precision(self) -> str:
        return self.contestant.split()[1]

    @property
    @abstractmethod
    def setting(self) -> tuple[int | str, ...]: ...

    @property
    @abstractmethod
    def rate(self) -> float:
        """More is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRow(Row):
    beams: int
    at_once: int
    sentences: int
    sentences_per_second: float
    chrf_own_fp32: float | None  # against the same engine's fp32 answers
    chrf_ctranslate2: float | None  # against CTranslate2's fp32 answers

    @property
    def setting(self) -> tuple[int | str, ...]:
        return self.beams, self.at_once

    @property
    def rate(self) -> float:
        return self.sentences_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRow(Row):
    model: str
    items: int
    items_per_second: float
    difference: float | None  # largest one of all scores to the bare fp32 session's, as a share of their spread

    @property
    def setting(self) -> tuple[int | str, ...]:
        return (self.model,)

    @property
    def rate(self) -> float:
        return self.items_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow(Row):
    position: int  # in steps of the environment, the first is 1
    steps: int
    milliseconds: float

    @property
    def setting(self) -> tuple[int | str, ...]:
        return ()  # positions are compared with each other

    @property
    def rate(self) -> float:
        return 1000 / self.milliseconds


R = TypeVar("R", bound=Row)


def ratio(row: R, rows: Sequence[R], contestant: str) -> float | None:
    """How many times as fast as that contestant in the same setting, where it took part."""
    others = (other for other in rows if other.setting == row.setting and other.contestant == contestant)
    return next((row.rate / other.rate for other in others), None)


def merged(old: Sequence[R], new: Sequence[R]) -> list[R]:
    """The new rows, and of the old ones those of settings that were not measured again."""
    again = {row.setting for row in new}
    return sorted([row for row in old if row.setting not in again] + list(new), key=lambda row: row.setting)
