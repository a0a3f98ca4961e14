"""Measures one server with one model: one client, saturation, the highest rate within p99, latency at 80 % of it."""

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

from headwaiter.client import operations
from loadtest.overhead.request_senders import sample_jpegs
from loadtest.peers.benchmark_models import BenchmarkModel
from loadtest.peers.servers import LABELS, PROTOCOLS, BenchmarkServer, RunningServer, parse_answer
from loadtest.sentences import sentences
from loadtest.traffic.open_loop import OpenLoopDriver
from loadtest.traffic.request_generators import LoadRequest
from loadtest.traffic.samples import Sample, call_counts, latencies
from loadtest.traffic.transports import TIMEOUT, CallResult, CancelAfter, GrpcTransport

_SENTENCES = 256
_CHECKED = 8  # answers compared between servers
_CALLERS = 32  # at saturation
_INITIAL_RATE = 0.7  # first rate of the search, relative to saturation
_GROWTH, _MAX_STEPS, _HALVINGS = 1.3, 6, 2
_MAX_ERRORS = 0.01
_MIN_CALLS, _MAX_SECONDS = 100, 20.0  # per rate; a p99 needs about 100 requests
_LATENCY_LOAD = 0.8  # of the capacity


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A request to a server with a JSON interface."""

    model: str
    content: str
    method: str = "predict"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMeasurement:
    server: str
    round: int
    startup_seconds: float
    memory_mb: float
    single_client_p50_ms: float
    single_client_p95_ms: float
    saturated_rate: float
    rate: float  # answered per second at the highest rate with p99 within the limit
    p95_at_80_percent_ms: float | None  # at 80 % of that rate
    p99_at_80_percent_ms: float | None
    answers: list[str]


class JsonTransport:
    """Transport to any server with a JSON interface."""

    def __init__(self, address: str, protocol: str, benchmark_model: BenchmarkModel) -> None:
        parts = urlsplit(address)
        self.name, self._protocol, self._benchmark_model = protocol, protocol, benchmark_model
        self._http = HTTPClient(
            parts.hostname or "", parts.port, concurrency=4096, network_timeout=TIMEOUT, block_size=1 << 16
        )

    def send(self, request: PeerRequest, cancel_after: CancelAfter | None = None) -> CallResult:  # noqa: ARG002
        try:
            self.predict(request.content)
        except (OSError, ValueError, KeyError) as error:
            return CallResult("UNAVAILABLE", str(error))
        return CallResult()

    def predict(self, content: str) -> str:
        path, body = PROTOCOLS[self._protocol](self._benchmark_model, content)
        response = self._http.request("POST", path, body, {"content-type": "application/json"})
        try:
            return parse_answer(self._protocol, json.loads(response.read()))
        finally:
            response.release()

    def close(self) -> None:
        self._http.close()


class RequestCycle:
    """Repeats a fixed list of requests, the same for all servers."""

    def __init__(self, make: Callable[[str], Any], contents: Sequence[str]) -> None:
        self._requests = itertools.cycle([make(content) for content in contents])

    def request(self, transport: str) -> Any:  # noqa: ARG002
        return next(self._requests)


def contents(benchmark_model: BenchmarkModel) -> list[str]:
    if benchmark_model.task == "translation":
        return sentences(_SENTENCES)
    return [base64.b64encode(jpeg).decode() for jpeg in sample_jpegs()]


def measure(
    server: BenchmarkServer,
    benchmark_model: BenchmarkModel,
    running: RunningServer,
    index: int,
    seconds: float,
    report_progress: Callable[[str], None],
) -> ServerMeasurement:
    benchmark = _ServerBenchmark(server, benchmark_model, running)
    report_progress("warm-up")
    answers = benchmark.answers()
    benchmark.run_closed_loop(4, seconds / 4)
    report_progress("one client")
    single_client = latencies(benchmark.run_closed_loop(1, seconds / 2))
    report_progress("saturation")
    samples = benchmark.run_closed_loop(_CALLERS, seconds)
    saturated = call_counts(samples).answered / max(sample.due + sample.seconds for sample in samples)
    seconds = max(seconds, min(_MAX_SECONDS, _MIN_CALLS / max(saturated, 1.0)))
    rate = benchmark.find_capacity(saturated, benchmark_model.p99_limit_ms, seconds, report_progress)
    report_progress(f"80 % of {rate:.3g} requests/s")
    loaded = latencies(benchmark.run_open_loop(_LATENCY_LOAD * rate, seconds))
    memory = running.memory_mb()
    benchmark.close()
    assert single_client.p50 is not None
    assert single_client.p95 is not None
    return ServerMeasurement(
        server=server.name,
        round=index,
        startup_seconds=running.startup_seconds,
        memory_mb=memory,
        single_client_p50_ms=single_client.p50,
        single_client_p95_ms=single_client.p95,
        saturated_rate=saturated,
        rate=rate,
        p95_at_80_percent_ms=loaded.p95,
        p99_at_80_percent_ms=loaded.p99,
        answers=answers,
    )


class _ServerBenchmark:
    def __init__(self, server: BenchmarkServer, benchmark_model: BenchmarkModel, running: RunningServer) -> None:
        self._contents, self._samples = contents(benchmark_model), list[Sample]()
        self._transport: Any
        if server.protocol == "headwaiter grpc":
            self._transport = GrpcTransport(running.address)
            self._json = None
        else:
            self._transport = self._json = JsonTransport(running.address, server.protocol, benchmark_model)
        self._make_request = self._request_factory(server, benchmark_model)
        self._driver = OpenLoopDriver(
            RequestCycle(self._make_request, self._contents), [self._transport], self._record_sample
        )

    def _request_factory(self, server: BenchmarkServer, benchmark_model: BenchmarkModel) -> Callable[[str], Any]:
        if server.protocol != "headwaiter grpc":
            return lambda content: PeerRequest(benchmark_model.name, content)
        if benchmark_model.task == "translation":
            return lambda content: LoadRequest(operations.translate(benchmark_model.name, content, num_beams=1))
        return lambda content: LoadRequest(
            operations.classify(benchmark_model.name, image=base64.b64decode(content), top_k=LABELS)
        )

    def answers(self) -> list[str]:
        if self._json is not None:
            return [self._json.predict(content) for content in self._contents[:_CHECKED]]
        answers = [self._transport.execute(self._make_request(content)) for content in self._contents[:_CHECKED]]
        return [_answer_text(answer) for answer in answers]

    def run_closed_loop(self, callers: int, seconds: float) -> list[Sample]:
        self._begin()
        end = time.perf_counter() + seconds

        def call() -> None:
            while time.perf_counter() < end:
                self._driver.send_one()

        gevent.joinall([gevent.spawn(call) for _ in range(callers)], raise_error=True)
        return self._samples

    def run_open_loop(self, rate: float, seconds: float) -> list[Sample]:
        self._begin()
        self._driver.send_arrivals(lambda _: rate, seconds)
        self._driver.wait(2 * TIMEOUT)
        return self._samples

    def find_capacity(
        self, saturated: float, p99_limit_ms: float, seconds: float, report_progress: Callable[[str], None]
    ) -> float:
        """Return the answers per second at the highest rate within the limits; 0 if no rate is."""
        answered = {0.0: 0.0}

        def holds(rate: float) -> bool:
            report_progress(f"{rate:.3g} requests/s")
            samples = self.run_open_loop(rate, seconds)
            answered[rate] = min(rate, sustained_rate(samples, seconds))
            p99 = latencies(samples).p99
            return p99 is not None and p99 <= p99_limit_ms and call_counts(samples).errors <= _MAX_ERRORS

        return answered[find_max_rate(holds, _INITIAL_RATE * saturated)]

    def close(self) -> None:
        self._transport.close()

    def _begin(self) -> None:
        self._samples = []
        self._driver.begin()

    def _record_sample(self, sample: Sample, _: str) -> None:
        self._samples.append(sample)


def _answer_text(answer: Any) -> str:
    return str(answer.text) if hasattr(answer, "text") else " ".join(str(label.index) for label in answer.labels)


def sustained_rate(samples: Sequence[Sample], seconds: float) -> float:
    """Return the answers per second during the measurement, without its first third.

    A growing queue can stay within a latency limit for the duration of a measurement, but it does not raise this rate.
    """
    begin = seconds / 3
    ends = [sample.due + sample.seconds for sample in samples if sample.code == "OK"]
    return sum(begin <= end < seconds for end in ends) / (seconds - begin)


def find_max_rate(holds: Callable[[float], bool], first: float) -> float:
    """Return about the highest rate for which `holds` is true, starting at `first`; 0 if none is found.

    Increases the rate while it holds, or decreases it until it does, then bisects.
    """
    rate, held = first, holds(first)
    factor = _GROWTH if held else 1 / _GROWTH
    for _ in range(_MAX_STEPS):
        previous, rate = rate, rate * factor
        if holds(rate) is not held:
            break
    else:
        return rate if held else 0.0
    low, high = (previous, rate) if held else (rate, previous)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
