"""Definitions of all metrics: name, kind, labels, buckets and help text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpc import StatusCode

from headwaiter.api.methods import METHODS

Kind = Literal["counter", "histogram", "gauge_livesum", "gauge_livemax"]
"""File name prefixes of prometheus_client. Live gauges disappear with their replica and are exported as the sum or the
maximum over the replicas of the node."""
KINDS: tuple[Kind, ...] = ("counter", "histogram", "gauge_livesum", "gauge_livemax")
PREFIX = "headwaiter_"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str  # without PREFIX, and for counters without `_total`
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()  # in addition to `model`
    buckets: tuple[float, ...] = ()


def _counter(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, "counter", help_text, labels)


def _histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name, "histogram", help_text, labels, buckets)


def _sum(name: str, help_text: str) -> Metric:
    return Metric(name, "gauge_livesum", help_text)


def _max(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, "gauge_livemax", help_text, labels)


LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKEN_LATENCY_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)

REQUESTS = _counter("requests", "Requests by method and gRPC status code.", "method", "code")
REQUESTS_REJECTED = _counter("requests_rejected", "Requests rejected because the model was overloaded.")
REQUEST_DURATION = _histogram(
    "request_duration_seconds", "Time from the arrival of a request to its end.", LATENCY_BUCKETS, "method"
)
STAGE_DURATION = _histogram(
    "request_stage_duration_seconds",
    "Time that successful requests spent in each stage (queue, prepare, run).",
    LATENCY_BUCKETS,
    "stage",
)
TIME_TO_FIRST_TOKEN = _histogram(
    "time_to_first_token_seconds",
    "Time from the start of a streaming request to its first chunk.",
    LATENCY_BUCKETS,
    "method",
)
INTER_TOKEN_LATENCY = _histogram(
    "inter_token_latency_seconds",
    "Time between consecutive chunks of a streaming request.",
    TOKEN_LATENCY_BUCKETS,
    "method",
)
INPUT_TOKENS = _counter("input_tokens", "Input tokens of successful requests.")
OUTPUT_TOKENS = _counter("output_tokens", "Generated tokens of successful requests.")
IMAGES = _counter("images", "Input and generated images of successful requests.")
ENGINE_UNHEALTHY = _counter(
    "engine_unhealthy",
    "Engines that stopped answering and had to be replaced, by cause (failing, hung, crashed).",
    "cause",
)
START_FAILURES = _counter("model_start_failures", "Attempts to load the model that failed.")
READY_REPLICAS = _sum("replicas_ready", "Replicas that are loaded and warmed up.")
DESIRED_REPLICAS = _max("replicas_desired", "Target number of replicas.")
MODEL_INFO = _max(
    "model_info", "Served model package; the value is always 1.", "version", "task", "family", "precision", "device"
)

ENGINE_COUNTERS = {
    "accepted": _counter("engine_jobs_accepted", "Jobs accepted by the engine; a request may consist of several."),
    "finished": _counter("engine_jobs_finished", "Jobs finished by the engine."),
    "failed": _counter("engine_jobs_failed", "Jobs that failed in the inference runtime."),
    "cancelled": _counter(
        "engine_jobs_cancelled", "Jobs cancelled because the client disconnected or the deadline passed."
    ),
    "steps": _counter("engine_steps", "Executions of the model graph on a batch."),
    "slot_steps": _counter("engine_slot_steps", "Slots summed over steps; divided by steps, the mean batch size."),
    "elements": _counter("batch_elements", "Elements of batched inputs, padding included."),
    "padding_elements": _counter("batch_padding_elements", "Padding elements of batched inputs."),
    "queue_seconds": _counter("engine_queue_seconds", "Seconds that jobs spent in the queue."),
    "observed_wait_seconds": _counter(
        "queue_wait_observed_seconds", "Queueing delays of requests for which one was estimated, in seconds."
    ),
    "wait_error_seconds": _counter(
        "queue_wait_estimate_error_seconds", "Absolute errors of the estimated queueing delays, in seconds."
    ),
    "encode_seconds": _counter("engine_encode_seconds", "Seconds that the engine spent encoding inputs."),
    "decode_seconds": _counter("engine_decode_seconds", "Seconds that the engine spent decoding outputs."),
}
"""Counters by their name in the engine's counter snapshot."""

ENGINE_GAUGES = {
    "waiting": _sum("queue_depth", "Jobs in the queue."),
    "slots_in_use": _sum("slots_in_use", "Slots of the cache or of the running batch in use."),
    "slots": _sum("slots", "Slots in total."),
    "episodes_open": _sum("episodes_open", "Open policy episodes; each holds a slot."),
    "estimated_wait_seconds": _max(
        "estimated_wait_seconds", "Estimated queueing delay of a new request; maximum over the replicas."
    ),
}
"""Gauges by their name in the engine's snapshot."""

REQUEST_COUNTERS = frozenset({"input_tokens", "output_tokens"})
"""Engine counters that are not exported, because INPUT_TOKENS and OUTPUT_TOKENS count them per request."""

METRICS = (
    *(REQUESTS, REQUESTS_REJECTED, REQUEST_DURATION, STAGE_DURATION, TIME_TO_FIRST_TOKEN, INTER_TOKEN_LATENCY),
    *(
        INPUT_TOKENS,
        OUTPUT_TOKENS,
        IMAGES,
        ENGINE_UNHEALTHY,
        START_FAILURES,
        READY_REPLICAS,
        DESIRED_REPLICAS,
        MODEL_INFO,
    ),
    *ENGINE_COUNTERS.values(),
    *ENGINE_GAUGES.values(),
)


@dataclass(frozen=True, slots=True)
class AllowedValues:
    known: frozenset[str]
    fallback: str


BOUNDED_LABELS = {
    "method": AllowedValues(frozenset(METHODS), "other"),
    "code": AllowedValues(frozenset(code.name for code in StatusCode), StatusCode.UNKNOWN.name),
}
"""Labels with client-supplied values; unknown values map to the fallback, which bounds the number of series."""


def bounded_value(label: str, value: str) -> str:
    bounds = BOUNDED_LABELS.get(label)
    return value if bounds is None or value in bounds.known else bounds.fallback
