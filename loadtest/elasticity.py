"""`python -m loadtest.elasticity`: measure cold start, scale-up under load and scale-down of one model.

Writes deploy/RESULTS.md. Requires models/opus-mt-zh-en in int8 and an otherwise idle machine.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwaiter.client import Client, HeadwaiterError
from loadtest.cluster.ray_cluster import wait_until
from loadtest.deployment_results import record
from loadtest.service_process import ServiceProcess, running_service

MODEL = "opus-mt-zh-en"
_TEXT = "服务器崩溃了，请稍后再试。"
_SCALE_DOWN_SECONDS, _TIMEOUT_SECONDS, _CALLERS = 10, 180, 8


@contextmanager
def _load(client: Client) -> Iterator[None]:
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                client.translate(MODEL, [_TEXT] * 8)
            except HeadwaiterError:  # rejections are expected under this load
                stop.wait(0.1)

    callers = [threading.Thread(target=call) for _ in range(_CALLERS)]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        stop.set()
        for caller in callers:
            caller.join(_TIMEOUT_SECONDS)


def measure(service: ServiceProcess, client: Client) -> dict[str, float]:
    def replicas() -> int:
        return len(service.replicas(MODEL))

    wait_until(lambda: replicas() == 0, "no replica is running", _TIMEOUT_SECONDS)
    started = time.monotonic()
    client.translate(MODEL, _TEXT)
    cold = time.monotonic() - started
    started = time.monotonic()
    client.translate(MODEL, _TEXT)
    warm = time.monotonic() - started
    with _load(client):
        scale_up = wait_until(lambda: replicas() == 2, "two replicas are running", _TIMEOUT_SECONDS)
    return {
        "first request to a model scaled to zero, answered": cold,
        "the same request again": warm,
        "load starts, a second replica is started": scale_up,
        f"load ends, one replica remains (`scale_down_delay_s: {_SCALE_DOWN_SECONDS}`)": wait_until(
            lambda: replicas() == 1, "one replica is running", _TIMEOUT_SECONDS
        ),
    }


def main() -> None:
    scale = {"min": 0, "max": 2, "target": 0.5, "scale_down_delay_s": _SCALE_DOWN_SECONDS}
    models = {
        MODEL: {
            "path": str(Path("models", MODEL).resolve()),
            "precision": "int8",
            "max_sequences": 16,
            "autoscale": scale,
        }
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        running_service(Path(folder), models) as service,
        service.client(timeout=_TIMEOUT_SECONDS) as client,
    ):
        measured = measure(service, client)
    record("scaling", [(event, f"{seconds:.1f} s") for event, seconds in measured.items()])


if __name__ == "__main__":
    main()
