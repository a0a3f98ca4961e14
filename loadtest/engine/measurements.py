"""One measurement per backend and setting; measurements of one setting come from one run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(ABC):
    backend: str  # engine and precision
    settings: str  # chosen by the backend
    rounds: int
    spread: float  # largest over smallest round
    when: str  # ISO 8601

    @property
    def engine(self) -> str:
        return self.backend.split()[0]

    @property
    def precision(self) -> str:
        return self.backend.split()[1]

    @property
    @abstractmethod
    def setting(self) -> tuple[int | str, ...]: ...

    @property
    @abstractmethod
    def rate(self) -> float:
        """Work per second; higher is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationMeasurement(Measurement):
    beams: int
    concurrency: int
    sentences: int
    sentences_per_second: float
    chrf_vs_own_fp32: float | None  # against the same engine's fp32 answers
    chrf_vs_ctranslate2_fp32: float | None  # against CTranslate2's fp32 answers

    @property
    def setting(self) -> tuple[int | str, ...]:
        return self.beams, self.concurrency

    @property
    def rate(self) -> float:
        return self.sentences_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderMeasurement(Measurement):
    model: str
    items: int
    items_per_second: float
    difference: float | None  # largest score difference to the bare fp32 session, relative to the range

    @property
    def setting(self) -> tuple[int | str, ...]:
        return (self.model,)

    @property
    def rate(self) -> float:
        return self.items_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMeasurement(Measurement):
    position: int  # environment step, counted from 1
    steps: int
    milliseconds: float

    @property
    def setting(self) -> tuple[int | str, ...]:
        return ()  # positions are compared with each other

    @property
    def rate(self) -> float:
        return 1000 / self.milliseconds


MeasurementT = TypeVar("MeasurementT", bound=Measurement)


def ratio(row: MeasurementT, rows: Sequence[MeasurementT], backend: str) -> float | None:
    """Return the speed relative to `backend` in the same setting, or None if it was not measured."""
    others = (other for other in rows if other.setting == row.setting and other.backend == backend)
    return next((row.rate / other.rate for other in others), None)


def merge_measurements(old: Sequence[MeasurementT], new: Sequence[MeasurementT]) -> list[MeasurementT]:
    """Return the new measurements and the old ones of settings that were not measured again."""
    measured_again = {row.setting for row in new}
    return sorted([row for row in old if row.setting not in measured_again] + list(new), key=lambda row: row.setting)
