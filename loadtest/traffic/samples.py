"""Outcomes of individual requests and their statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CLIENT_CANCELLED = "CLIENT_CANCELLED"  # cancelled deliberately by the load generator
REJECTED = "RESOURCE_EXHAUSTED"
EPISODE, STEP = "Episode", "EpisodeStep"


@dataclass(frozen=True, slots=True)
class Sample:
    """A request, or a step of an episode, which is not counted as a request."""

    due: float  # scheduled arrival, seconds since the start
    send_delay: float  # seconds between `due` and sending, caused by the load generator
    seconds: float  # from `due` to the end
    first_chunk_seconds: float | None  # time to the first chunk of a stream
    transport: str
    model: str
    method: str
    code: str

    @property
    def is_call(self) -> bool:
        return self.method != STEP

    @property
    def is_timed(self) -> bool:
        """True for answered requests other than episodes, whose steps are timed instead."""
        return self.code == "OK" and self.method != EPISODE


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Numbers of requests: sent = answered + rejected + cancelled + failed."""

    sent: int
    answered: int
    rejected: int
    cancelled: int  # by the load generator
    failed: int
    codes: dict[str, int]

    @property
    def errors(self) -> float:
        """The fraction of requests that were rejected or failed."""
        return (self.rejected + self.failed) / self.sent if self.sent else 0.0


def call_counts(samples: Iterable[Sample]) -> CallCounts:
    codes = Counter(sample.code for sample in samples if sample.is_call)
    sent, answered, rejected, cancelled = sum(codes.values()), codes["OK"], codes[REJECTED], codes[CLIENT_CANCELLED]
    return CallCounts(
        sent, answered, rejected, cancelled, sent - answered - rejected - cancelled, dict(sorted(codes.items()))
    )


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Latencies in milliseconds; None if nothing was measured."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


def summarise_latencies(seconds: Sequence[float]) -> LatencySummary:
    if not seconds:
        return LatencySummary(0, None, None, None, None, None)
    milliseconds = 1e3 * np.asarray(seconds)
    p50, p95, p99 = (float(value) for value in np.percentile(milliseconds, (50, 95, 99)))
    return LatencySummary(len(seconds), float(milliseconds.mean()), p50, p95, p99, float(milliseconds.max()))


def latencies(samples: Iterable[Sample]) -> LatencySummary:
    """Summarise the latencies of answered requests."""
    return summarise_latencies([sample.seconds for sample in samples if sample.is_timed])


def rejections(samples: Iterable[Sample]) -> LatencySummary:
    return summarise_latencies([sample.seconds for sample in samples if sample.code == REJECTED])


def first_chunk_latencies(samples: Iterable[Sample]) -> LatencySummary:
    return summarise_latencies(
        [sample.first_chunk_seconds for sample in samples if sample.first_chunk_seconds is not None]
    )
