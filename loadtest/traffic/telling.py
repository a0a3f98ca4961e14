"""Calls as locust's statistics have them."""

from __future__ import annotations

from collections.abc import Callable

from locust.env import Environment

from loadtest.traffic.samples import LEFT, Sample

Tell = Callable[[Sample, str], None]


class CallFailed(Exception):  # noqa: N818 - its name is what locust's page shows
    """Neither answered nor left on purpose."""


def teller(environment: Environment, *others: Tell) -> Tell:
    """Tells locust, and whoever else wants to know. The first piece of a stream gets a line of its own."""

    def tell(sample: Sample, message: str) -> None:
        name = f"{sample.model} {sample.method}"
        failed = None if sample.code in ("OK", LEFT) else CallFailed(f"{sample.code}: {message}")
        fire = environment.events.request.fire
        common = {"request_type": sample.way, "response_length": 0, "context": {}}
        fire(name=name, response_time=1e3 * sample.seconds, exception=failed, **common)
        if sample.first is not None:
            fire(name=f"{name} (first piece)", response_time=1e3 * sample.first, exception=None, **common)
        for other in others:
            other(sample, message)

    return tell
