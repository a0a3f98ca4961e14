"""One entrant with one model: alone, at saturation, the rate at a given p99, and the latency at 80 % of that."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import gevent
from geventhttpclient import HTTPClient

from loadtest.peers.entrants import DIALECTS, LABELS, Entrant, Running, answer_of
from loadtest.peers.weights import Subject
from loadtest.senders import pictures
from loadtest.sentences import sentences
from loadtest.traffic.crowd import Crowd
from loadtest.traffic.guests import Order
from loadtest.traffic.samples import Sample, latencies, tally
from loadtest.traffic.ways import TIMEOUT, Grpc, Outcome, Patience
from service.client import verbs

_SENTENCES = 256
_CHECKED = 8  # answers
_CALLERS = 32  # at saturation
_FIRST = 0.7  # of the rate at saturation: where the search begins
_GROWTH, _MOST_STEPS, _HALVINGS = 1.3, 6, 2
_ERRORS = 0.01
_FEWEST_CALLS, _LONGEST = 100, 20.0  # of a rate that is tried, and seconds: fewer calls have no p99
_USUAL = 0.8  # of what it carries


@dataclass(frozen=True, slots=True)
class Question:
    """To a server that is asked in JSON."""

    model: str
    content: str
    method: str = "predict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    entrant: str
    round: int
    started_seconds: float
    memory_mb: float
    alone_p50_ms: float
    alone_p95_ms: float
    saturated_rate: float
    rate: float  # answered a second at the highest with p99 within the limit
    usual_p95_ms: float | None  # at 80 % of that
    usual_p99_ms: float | None
    answers: list[str]


class Json:
    """A way to any server that takes JSON."""

    def __init__(self, address: str, dialect: str, subject: Subject) -> None:
        place = urlsplit(address)
        self.name, self._dialect, self._subject = dialect, dialect, subject
        self._http = HTTPClient(
            place.hostname or "", place.port, concurrency=4096, network_timeout=TIMEOUT, block_size=1 << 16
        )

    def send(self, order: Question, patience: Patience | None = None) -> Outcome:  # noqa: ARG002
        try:
            self.ask(order.content)
        except (OSError, ValueError, KeyError) as error:
            return Outcome("UNAVAILABLE", str(error))
        return Outcome()

    def ask(self, content: str) -> str:
        path, body = DIALECTS[self._dialect](self._subject, content)
        response = self._http.request("POST", path, body, {"content-type": "application/json"})
        try:
            return answer_of(self._dialect, json.loads(response.read()))
        finally:
            response.release()

    def close(self) -> None:
        self._http.close()


class Questions:
    """The same for everyone, over and over."""

    def __init__(self, make: Callable[[str], Any], contents: Sequence[str]) -> None:
        self._turns = itertools.cycle([make(content) for content in contents])

    def order(self, way: str) -> Any:  # noqa: ARG002
        return next(self._turns)


def contents(subject: Subject) -> list[str]:
    if subject.task == "translation":
        return sentences(_SENTENCES)
    return [base64.b64encode(each).decode() for each in pictures()]


def measure(
    entrant: Entrant, subject: Subject, running: Running, index: int, seconds: float, tell: Callable[[str], None]
) -> Measured:
    bench = _Bench(entrant, subject, running)
    tell("warm-up")
    answers = bench.answers()
    bench.closed(4, seconds / 4)
    tell("one caller")
    alone = latencies(bench.closed(1, seconds / 2))
    tell("saturation")
    samples = bench.closed(_CALLERS, seconds)
    saturated = tally(samples).answered / max(each.due + each.seconds for each in samples)
    seconds = max(seconds, min(_LONGEST, _FEWEST_CALLS / max(saturated, 1.0)))
    rate = bench.carried(saturated, subject.limit_ms, seconds, tell)
    tell(f"80 % of {rate:.3g} calls a second")
    usual = latencies(bench.open(_USUAL * rate, seconds))
    memory = running.memory_mb()
    bench.close()
    assert alone.p50 is not None
    assert alone.p95 is not None
    return Measured(
        entrant=entrant.name,
        round=index,
        started_seconds=running.started_seconds,
        memory_mb=memory,
        alone_p50_ms=alone.p50,
        alone_p95_ms=alone.p95,
        saturated_rate=saturated,
        rate=rate,
        usual_p95_ms=usual.p95,
        usual_p99_ms=usual.p99,
        answers=answers,
    )


class _Bench:
    def __init__(self, entrant: Entrant, subject: Subject, running: Running) -> None:
        self._contents, self._samples = contents(subject), list[Sample]()
        self._way: Any
        if entrant.dialect == "headwaiter grpc":
            self._way = Grpc(running.address)
            self._json = None
        else:
            self._way = self._json = Json(running.address, entrant.dialect, subject)
        self._ask = self._asking(entrant, subject)
        self._crowd = Crowd(Questions(self._ask, self._contents), [self._way], self._keep)

    def _asking(self, entrant: Entrant, subject: Subject) -> Callable[[str], Any]:
        if entrant.dialect != "headwaiter grpc":
            return lambda content: Question(subject.name, content)
        if subject.task == "translation":
            return lambda content: Order(verbs.translate(subject.name, content, beams=1))
        return lambda content: Order(verbs.classify(subject.name, image=base64.b64decode(content), top_k=LABELS))

    def answers(self) -> list[str]:
        if self._json is not None:
            return [self._json.ask(content) for content in self._contents[:_CHECKED]]
        found = [self._way.ask(self._ask(content)) for content in self._contents[:_CHECKED]]
        return [_told(each) for each in found]

    def closed(self, callers: int, seconds: float) -> list[Sample]:
        self._begin()
        end = time.perf_counter() + seconds

        def call() -> None:
            while time.perf_counter() < end:
                self._crowd.serve_one()

        gevent.joinall([gevent.spawn(call) for _ in range(callers)], raise_error=True)
        return self._samples

    def open(self, rate: float, seconds: float) -> list[Sample]:
        self._begin()
        self._crowd.arrive(lambda _: rate, seconds)
        self._crowd.wait(2 * TIMEOUT)
        return self._samples

    def carried(self, saturated: float, limit_ms: float, seconds: float, tell: Callable[[str], None]) -> float:
        """What was answered a second at the highest rate that held; 0 where none did."""
        answered = {0.0: 0.0}

        def holds(rate: float) -> bool:
            tell(f"{rate:.3g} calls a second")
            samples = self.open(rate, seconds)
            answered[rate] = min(rate, kept_up(samples, seconds))
            p99 = latencies(samples).p99
            return p99 is not None and p99 <= limit_ms and tally(samples).errors <= _ERRORS

        return answered[highest(holds, _FIRST * saturated)]

    def close(self) -> None:
        self._way.close()

    def _begin(self) -> None:
        self._samples = []
        self._crowd.begin()

    def _keep(self, sample: Sample, _: str) -> None:
        self._samples.append(sample)


def _told(answer: Any) -> str:
    return str(answer.text) if hasattr(answer, "text") else " ".join(str(label.index) for label in answer.labels)


def kept_up(samples: Sequence[Sample], seconds: float) -> float:
    """Answers a second while calls came, the first third left out: a line that grows may stay within a limit of latency
    for as long as it is measured, but what is answered does not grow with it."""
    begin = seconds / 3
    ends = [each.due + each.seconds for each in samples if each.code == "OK"]
    return sum(begin <= end < seconds for end in ends) / (seconds - begin)


def highest(holds: Callable[[float], bool], first: float) -> float:
    """Goes up while it holds, or down until it does, then halves what is between."""
    rate, held = first, holds(first)
    factor = _GROWTH if held else 1 / _GROWTH
    for _ in range(_MOST_STEPS):
        before, rate = rate, rate * factor
        if holds(rate) is not held:
            break
    else:
        return rate if held else 0.0
    low, high = (before, rate) if held else (rate, before)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
