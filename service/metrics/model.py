"""What one replica tells of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from service.metrics import table
from service.metrics.table import Metric, bounded
from service.metrics.writer import Distribution, Number, Writer

Child = TypeVar("Child")


class Children(dict[tuple[str, ...], Child], Generic[Child]):
    """A metric's numbers by the values of its labels, made when first asked for."""

    def __init__(self, make: Callable[[Metric, dict[str, str]], Child], model: str, metric: Metric) -> None:
        super().__init__()
        self._make, self._model, self._metric = make, model, metric

    def __missing__(self, values: tuple[str, ...]) -> Child:
        labels = {name: bounded(name, value) for name, value in zip(self._metric.labels, values, strict=True)}
        known = tuple(labels.values())
        if known not in self:
            self[known] = self._make(self._metric, {"model": self._model} | labels)
        return self[known]


class ModelMetrics:
    def __init__(self, model: str, writer: Writer) -> None:
        self._model, self._writer = model, writer
        self._requests = self._numbers(table.REQUESTS)
        self._request_seconds = self._distributions(table.REQUEST_SECONDS)
        self._first_token = self._distributions(table.FIRST_TOKEN)
        self._between_tokens = self._distributions(table.BETWEEN_TOKENS)
        stages = self._distributions(table.STAGE_SECONDS)
        self._queue, self._prepare, self._run = (stages[each,] for each in ("queue", "prepare", "run"))
        self._input_tokens = self._numbers(table.INPUT_TOKENS)[()]
        self._output_tokens = self._numbers(table.OUTPUT_TOKENS)[()]
        self._images = self._numbers(table.IMAGES)[()]
        self._ready = self._numbers(table.READY)[()]
        self._wanted = self._numbers(table.WANTED)
        self._info = self._numbers(table.INFO)
        self._counted = {name: self._numbers(metric) for name, metric in table.COUNTED.items()}
        self._gauged = {name: self._numbers(metric) for name, metric in table.GAUGED.items()}
        self._seen: dict[str, float] = {}

    def finished(self, method: str, code: str, seconds: float) -> None:
        self._requests[method, code].add()
        self._request_seconds[method,].observe(seconds)

    def stages(self, queue_ms: float, prepare_ms: float, run_ms: float) -> None:
        self._queue.observe(queue_ms / 1e3)
        self._prepare.observe(prepare_ms / 1e3)
        self._run.observe(run_ms / 1e3)

    def usage(self, input_tokens: int, output_tokens: int, images: int) -> None:
        self._input_tokens.add(input_tokens)
        self._output_tokens.add(output_tokens)
        self._images.add(images)

    def first_token(self, method: str, seconds: float) -> None:
        self._first_token[method,].observe(seconds)

    def between_tokens(self, method: str, seconds: float) -> None:
        self._between_tokens[method,].observe(seconds)

    def describe(self, version: str, task: str, family: str, precision: str, device: str) -> None:
        self._info[version, task, family, precision, device].set(1)

    def ready(self, is_ready: bool) -> None:
        self._ready.set(is_ready)

    def wanted(self, replicas: int) -> None:
        self._wanted[()].set(replicas)

    def observe_engine(self, snapshot: Mapping[str, float]) -> None:
        """Takes `Meters.snapshot()`, and beside it whatever else `table.GAUGED` names."""
        for name, value in snapshot.items():
            if name in self._counted:
                self._counted[name][()].add(self._increase(name, value))
            elif name in self._gauged:
                self._gauged[name][()].set(value)
            elif name not in table.COUNTED_PER_REQUEST:
                raise ValueError(f"{name} is no metric; service/metrics/table.py has {[*self._counted, *self._gauged]}")

    def close(self) -> None:
        """The replica no longer waits, holds or is ready for anything; what it counted stays."""
        self._writer.end_gauges()

    def _numbers(self, metric: Metric) -> Children[Number]:
        return Children(self._writer.number, self._model, metric)

    def _distributions(self, metric: Metric) -> Children[Distribution]:
        return Children(self._writer.distribution, self._model, metric)

    def _increase(self, name: str, value: float) -> float:
        """A number below the last one is that of a new engine, which began at zero."""
        before = self._seen.get(name, 0.0)
        self._seen[name] = value
        return value - before if value >= before else value
