"""What happened to each call, and what it comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LEFT, REFUSED = "LEFT", "RESOURCE_EXHAUSTED"  # the first: given up by its caller, on purpose
EPISODE, STEP = "Episode", "EpisodeStep"


@dataclass(frozen=True, slots=True)
class Sample:
    """A call, or a step of an episode, which is no call of its own."""

    due: float  # seconds since the beginning, when it was to be sent
    late: float  # seconds after that it was sent: the load generator's own doing
    seconds: float  # from when it was due to its end
    first: float | None  # seconds to the first piece of a stream
    way: str
    model: str
    method: str
    code: str

    @property
    def is_call(self) -> bool:
        return self.method != STEP

    @property
    def is_timed(self) -> bool:
        """An episode lasts as long as it is played: its steps are what somebody waits for."""
        return self.code == "OK" and self.method != EPISODE


@dataclass(frozen=True, slots=True)
class Tally:
    """Calls that were sent = answered + refused + left + failed."""

    sent: int
    answered: int
    refused: int
    left: int  # on purpose
    failed: int
    codes: dict[str, int]

    @property
    def errors(self) -> float:
        """The share of calls that were neither answered nor left."""
        return (self.refused + self.failed) / self.sent if self.sent else 0.0


def tally(samples: Iterable[Sample]) -> Tally:
    codes = Counter(sample.code for sample in samples if sample.is_call)
    sent, answered, refused, left = sum(codes.values()), codes["OK"], codes[REFUSED], codes[LEFT]
    return Tally(sent, answered, refused, left, sent - answered - refused - left, dict(sorted(codes.items())))


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds; None where nothing was measured."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    longest: float | None


def times(seconds: Sequence[float]) -> Times:
    if not seconds:
        return Times(0, None, None, None, None, None)
    milliseconds = 1e3 * np.asarray(seconds)
    p50, p95, p99 = (float(each) for each in np.percentile(milliseconds, (50, 95, 99)))
    return Times(len(seconds), float(milliseconds.mean()), p50, p95, p99, float(milliseconds.max()))


def latencies(samples: Iterable[Sample]) -> Times:
    """Of what was answered."""
    return times([sample.seconds for sample in samples if sample.is_timed])


def refusals(samples: Iterable[Sample]) -> Times:
    return times([sample.seconds for sample in samples if sample.code == REFUSED])


def first_pieces(samples: Iterable[Sample]) -> Times:
    return times([sample.first for sample in samples if sample.first is not None])
