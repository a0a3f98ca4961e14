"""Every metric there is: name, kind, labels, and the sentence that the page says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpc import StatusCode

from service.ingress.methods import METHODS

Kind = Literal["counter", "histogram", "gauge_livesum", "gauge_livemax"]
"""As prometheus_client names its files. A live gauge ends with its replica; of several replicas' values the page shows
the sum or the largest."""
KINDS: tuple[Kind, ...] = ("counter", "histogram", "gauge_livesum", "gauge_livemax")
PREFIX = "headwaiter_"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str  # without the prefix, and a counter's without `_total`
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()  # after `model`, which all have
    buckets: tuple[float, ...] = ()


def _counter(name: str, words: str, *labels: str) -> Metric:
    return Metric(name, "counter", words, labels)


def _histogram(name: str, words: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name, "histogram", words, labels, buckets)


def _sum(name: str, words: str) -> Metric:
    return Metric(name, "gauge_livesum", words)


def _largest(name: str, words: str, *labels: str) -> Metric:
    return Metric(name, "gauge_livemax", words, labels)


LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)

REQUESTS = _counter("requests", "Requests answered, by how they ended.", "method", "code")
REQUEST_SECONDS = _histogram("request_seconds", "From a request's arrival to its end.", LATENCY, "method")
STAGE_SECONDS = _histogram("stage_seconds", "Where answered requests spent their time.", LATENCY, "stage")
FIRST_TOKEN = _histogram("first_token_seconds", "From a stream's beginning to its first piece.", LATENCY, "method")
BETWEEN_TOKENS = _histogram("between_tokens_seconds", "From one piece of a stream to the next.", PER_TOKEN, "method")
INPUT_TOKENS = _counter("input_tokens", "Tokens read for answered requests.")
OUTPUT_TOKENS = _counter("output_tokens", "Tokens written for answered requests.")
IMAGES = _counter("images", "Images read or made for answered requests.")
READY = _sum("ready", "Replicas that are loaded and warmed up.")
WANTED = _largest("replicas_wanted", "Replicas that there should be.")
INFO = _largest("model_info", "What is served; always 1.", "version", "task", "family", "precision", "device")

COUNTED = {
    "accepted": _counter("engine_accepted", "Jobs that the engine took; a request may be several."),
    "finished": _counter("engine_finished", "Jobs that the engine finished."),
    "failed": _counter("engine_failures", "Jobs that the runtime failed at."),
    "cancelled": _counter("cancelled", "Jobs given up because nobody waited any more or their time was over."),
    "refused": _counter("refused", "Jobs that the engine did not take because it was full."),
    "steps": _counter("steps", "Runs of the model's graph over a batch of rows."),
    "row_steps": _counter("row_steps", "Rows that took part in a step; per step, the size of a batch."),
    "places": _counter("places", "Places of batched inputs, filled up ones too."),
    "padding": _counter("padding_places", "Places of batched inputs that were only filled up."),
    "queue_seconds": _counter("engine_queue_seconds", "Seconds that jobs waited for the engine."),
    "encode_seconds": _counter("engine_encode_seconds", "Seconds that the engine read inputs."),
    "decode_seconds": _counter("engine_decode_seconds", "Seconds that the engine wrote outputs step by step."),
}
"""By the name that `Meters` has for a number that only grows."""

GAUGED = {
    "waiting": _sum("queue_waiting", "Jobs that wait for the engine."),
    "rows_in_use": _sum("rows_in_use", "Rows of the cache, or of the batch that runs, in use."),
    "rows": _sum("rows", "Rows that there are."),
    "episodes_open": _sum("episodes_open", "Episodes that hold a row."),
    "estimated_wait_seconds": _largest("estimated_wait_seconds", "How long a job that came now would wait, at worst."),
}

COUNTED_PER_REQUEST = frozenset({"input_tokens", "output_tokens"})
"""`Meters` has them too, of all jobs; the page has them once."""

TABLE = (
    *(REQUESTS, REQUEST_SECONDS, STAGE_SECONDS, FIRST_TOKEN, BETWEEN_TOKENS),
    *(INPUT_TOKENS, OUTPUT_TOKENS, IMAGES, READY, WANTED, INFO),
    *COUNTED.values(),
    *GAUGED.values(),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    known: frozenset[str]
    otherwise: str


BOUNDED = {
    "method": Bounds(frozenset(METHODS), "other"),
    "code": Bounds(frozenset(code.name for code in StatusCode), StatusCode.UNKNOWN.name),
}
"""Labels whose values come with requests: whatever is sent, the page does not grow."""


def bounded(label: str, value: str) -> str:
    bounds = BOUNDED.get(label)
    return value if bounds is None or value in bounds.known else bounds.otherwise
