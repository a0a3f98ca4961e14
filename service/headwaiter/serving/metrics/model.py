"""Metrics that one replica records for its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar, get_args

from headwaiter.engine.health import Cause
from headwaiter.serving.metrics import definitions
from headwaiter.serving.metrics.definitions import Metric, bounded_value
from headwaiter.serving.metrics.writer import StoredHistogram, StoredValue, Writer

Child = TypeVar("Child")
_REJECTED = "RESOURCE_EXHAUSTED"


class Children(dict[tuple[str, ...], Child], Generic[Child]):
    """Series of a metric by label values, created on first access."""

    def __init__(self, make: Callable[[Metric, dict[str, str]], Child], model: str, metric: Metric) -> None:
        super().__init__()
        self._make, self._model, self._metric = make, model, metric

    def __missing__(self, values: tuple[str, ...]) -> Child:
        labels = {name: bounded_value(name, value) for name, value in zip(self._metric.labels, values, strict=True)}
        known = tuple(labels.values())
        if known not in self:
            self[known] = self._make(self._metric, {"model": self._model} | labels)
        return self[known]


class ModelMetrics:
    def __init__(self, model: str, writer: Writer) -> None:
        self._model, self._writer = model, writer
        self._requests = self._values(definitions.REQUESTS)
        self._rejected = self._values(definitions.REQUESTS_REJECTED)[()]
        self._request_duration = self._histograms(definitions.REQUEST_DURATION)
        self._time_to_first_token = self._histograms(definitions.TIME_TO_FIRST_TOKEN)
        self._inter_token_latency = self._histograms(definitions.INTER_TOKEN_LATENCY)
        stages = self._histograms(definitions.STAGE_DURATION)
        self._queue, self._prepare, self._run = (stages[stage,] for stage in ("queue", "prepare", "run"))
        self._input_tokens = self._values(definitions.INPUT_TOKENS)[()]
        self._output_tokens = self._values(definitions.OUTPUT_TOKENS)[()]
        self._images = self._values(definitions.IMAGES)[()]
        unhealthy = self._values(definitions.ENGINE_UNHEALTHY)
        # Exported as 0 from the start, so that Prometheus sees the first increase.
        self._unhealthy = {cause: unhealthy[cause,] for cause in get_args(Cause)}
        self._start_failures = self._values(definitions.START_FAILURES)[()]
        self._ready = self._values(definitions.READY_REPLICAS)[()]
        self._desired_replicas = self._values(definitions.DESIRED_REPLICAS)
        self._info = self._values(definitions.MODEL_INFO)
        self._engine_counters = {name: self._values(metric) for name, metric in definitions.ENGINE_COUNTERS.items()}
        self._engine_gauges = {name: self._values(metric) for name, metric in definitions.ENGINE_GAUGES.items()}
        self._last_values: dict[str, float] = {}

    def record_request(self, method: str, code: str, seconds: float) -> None:
        self._requests[method, code].add()
        if code == _REJECTED:
            self._rejected.add()
        self._request_duration[method,].observe(seconds)

    def record_stages(self, queue_ms: float, prepare_ms: float, run_ms: float) -> None:
        self._queue.observe(queue_ms / 1e3)
        self._prepare.observe(prepare_ms / 1e3)
        self._run.observe(run_ms / 1e3)

    def record_usage(self, input_tokens: int, output_tokens: int, images: int) -> None:
        self._input_tokens.add(input_tokens)
        self._output_tokens.add(output_tokens)
        self._images.add(images)

    def record_time_to_first_token(self, method: str, seconds: float) -> None:
        self._time_to_first_token[method,].observe(seconds)

    def record_inter_token_latency(self, method: str, seconds: float) -> None:
        self._inter_token_latency[method,].observe(seconds)

    def describe(self, version: str, task: str, family: str, precision: str, device: str) -> None:
        self._info[version, task, family, precision, device].set(1)

    def record_unhealthy(self, cause: Cause) -> None:
        self._unhealthy[cause].add()

    def record_start_failure(self) -> None:
        self._start_failures.add()

    def set_ready(self, is_ready: bool) -> None:
        self._ready.set(is_ready)

    def set_desired_replicas(self, replicas: int) -> None:
        self._desired_replicas[()].set(replicas)

    def observe_engine(self, snapshot: Mapping[str, float]) -> None:
        """Record the engine's counter snapshot and the gauges of `definitions.ENGINE_GAUGES`."""
        for name, value in snapshot.items():
            if name in self._engine_counters:
                self._engine_counters[name][()].add(self._increase(name, value))
            elif name in self._engine_gauges:
                self._engine_gauges[name][()].set(value)
            elif name not in definitions.REQUEST_COUNTERS:
                known = [*self._engine_counters, *self._engine_gauges]
                raise ValueError(f"{name} is not defined in headwaiter/serving/metrics/definitions.py; known: {known}")

    def close(self) -> None:
        """Remove the gauges of this replica; counters and histograms are kept."""
        self._writer.discard_gauges()

    def _values(self, metric: Metric) -> Children[StoredValue]:
        return Children(self._writer.open_value, self._model, metric)

    def _histograms(self, metric: Metric) -> Children[StoredHistogram]:
        return Children(self._writer.open_histogram, self._model, metric)

    def _increase(self, name: str, value: float) -> float:
        """Increase since the last observation; a smaller value means a new engine that started at zero."""
        last = self._last_values.get(name, 0.0)
        self._last_values[name] = value
        return value - last if value >= last else value
