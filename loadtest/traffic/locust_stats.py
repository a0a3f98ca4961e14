"""Report samples to locust's statistics."""

from __future__ import annotations

from collections.abc import Callable

from locust.env import Environment

from loadtest.traffic.samples import CLIENT_CANCELLED, Sample

SampleCallback = Callable[[Sample, str], None]


class CallFailed(Exception):  # noqa: N818 - locust's web page shows this name
    """The request was neither answered nor cancelled deliberately."""


def locust_callback(environment: Environment, *others: SampleCallback) -> SampleCallback:
    """Return a callback that reports to locust and to `others`; time to first chunk is a separate entry."""

    def on_sample(sample: Sample, message: str) -> None:
        name = f"{sample.model} {sample.method}"
        error = None if sample.code in ("OK", CLIENT_CANCELLED) else CallFailed(f"{sample.code}: {message}")
        fire = environment.events.request.fire
        common = {"request_type": sample.transport, "response_length": 0, "context": {}}
        fire(name=name, response_time=1e3 * sample.seconds, exception=error, **common)
        if sample.first_chunk_seconds is not None:
            fire(name=f"{name} (first chunk)", response_time=1e3 * sample.first_chunk_seconds, exception=None, **common)
        for other in others:
            other(sample, message)

    return on_sample
