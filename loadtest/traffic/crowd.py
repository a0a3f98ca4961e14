"""Guests that come when they come: arrivals are drawn, and wait for nobody's answer."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import gevent
from gevent.pool import Group

from loadtest.traffic.samples import STEP, Sample
from loadtest.traffic.ways import Outcome, Patience

Rate = Callable[[float], float]
"""Arrivals a second, so many seconds after the beginning."""
_LONGEST_NAP = 0.25  # seconds: so soon a change of the rate is noticed
_LOST_PATIENCE = (0.001, 0.4)  # seconds, at least and at most; as many leave in a hundredth as in a tenth
_LOST_PIECES = 6


class Ordered(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def method(self) -> str: ...


Order = TypeVar("Order", bound=Ordered)
Sent = TypeVar("Sent", contravariant=True)
Made = TypeVar("Made", covariant=True)


class Source(Protocol[Made]):
    def order(self, way: str) -> Made: ...


class Way(Protocol[Sent]):
    name: str

    def send(self, order: Sent, patience: Patience | None = None) -> Outcome: ...


class Crowd(Generic[Order]):
    """`tell` is told of every call as it ends."""

    def __init__(
        self,
        table: Source[Order],
        ways: Sequence[Way[Order]],
        tell: Callable[[Sample, str], None],
        *,
        seed: int = 0,
        leaving: float = 0,
    ) -> None:
        """`leaving`: the share of guests who do not wait for the end."""
        self.leaving = leaving
        self._table, self._ways, self._tell = table, ways, tell
        self._random = random.Random(seed)
        self._under_way = Group()
        self._began = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._began

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def begin(self) -> None:
        self._began = time.perf_counter()

    def arrive(self, rate: Rate, until: float) -> None:
        """Poisson arrivals at a rate that may change; each is sent when it is due, whatever became of the others."""
        due = self.now
        while due < until:
            expected = rate(due)
            gap = self._random.expovariate(expected) if expected > 0 else _LONGEST_NAP
            if gap >= _LONGEST_NAP:  # an exponential gap has no memory: cut, it is drawn anew with the rate of then
                due += _LONGEST_NAP
                self._sleep_until(due)
                continue
            due += gap
            self._sleep_until(due)
            if due < until:
                self._under_way.spawn(self.serve_one, due)

    def serve_one(self, due: float | None = None) -> None:
        """One guest, from now or from when he was due, to his end."""
        sent = self.now
        way = self._random.choice(self._ways)
        order = self._table.order(way.name)
        outcome = way.send(order, self._patience())
        self._note(order, way.name, sent if due is None else due, sent, outcome)

    def wait(self, seconds: float) -> bool:
        """For all who are under way; whether they have all ended."""
        return bool(self._under_way.join(timeout=seconds)) or not len(self._under_way)

    def _patience(self) -> Patience | None:
        if self._random.random() >= self.leaving:
            return None
        least, most = map(math.log, _LOST_PATIENCE)
        return Patience(math.exp(self._random.uniform(least, most)), self._random.randrange(_LOST_PIECES))

    def _note(self, order: Order, way: str, due: float, sent: float, outcome: Outcome) -> None:
        late, code = sent - due, outcome.code
        for seconds in outcome.steps:
            self._tell(Sample(due, late, seconds, None, way, order.model, STEP, "OK"), "")
        taken = self.now - due
        self._tell(Sample(due, late, taken, outcome.first, way, order.model, order.method, code), outcome.message)

    def _sleep_until(self, due: float) -> None:
        if (left := due - self.now) > 0:
            gevent.sleep(left)
