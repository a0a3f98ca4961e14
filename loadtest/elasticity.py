"""`python -m loadtest.elasticity`: how long a model takes to wake, to grow under load, and to shrink after it.

Writes deploy/RESULTS.md. Needs models/opus-mt-zh-en in int8, and a machine that does nothing else.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.results import record
from loadtest.cluster import wait_until
from loadtest.served import Service, serving
from service.client import Client, HeadwaiterError

MODEL = "opus-mt-zh-en"
_TEXT = "服务器崩溃了，请稍后再试。"
_SHRINK_SECONDS, _UNTIL_SECONDS, _CALLERS = 10, 180, 8


@contextmanager
def _load(client: Client) -> Iterator[None]:
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                client.translate(MODEL, [_TEXT] * 8)
            except HeadwaiterError:  # refused: that is the load
                stop.wait(0.1)

    callers = [threading.Thread(target=call) for _ in range(_CALLERS)]
    for each in callers:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in callers:
            each.join()


def measure(service: Service, client: Client) -> dict[str, float]:
    def replicas() -> int:
        return len(service.replicas(MODEL))

    wait_until(lambda: replicas() == 0, "the model sleeps", _UNTIL_SECONDS)
    begun = time.monotonic()
    client.translate(MODEL, _TEXT)
    cold = time.monotonic() - begun
    begun = time.monotonic()
    client.translate(MODEL, _TEXT)
    warm = time.monotonic() - begun
    with _load(client):
        decided = wait_until(lambda: replicas() == 2, "there are two replicas", _UNTIL_SECONDS)
    return {
        "first call to a model that sleeps, answered": cold,
        "the same call again": warm,
        "load begins, a second replica is started": decided,
        f"load ends, one replica is left (`shrink_s: {_SHRINK_SECONDS}`)": wait_until(
            lambda: replicas() == 1, "one replica is left", _UNTIL_SECONDS
        ),
    }


def main() -> None:
    scale = {"min": 0, "max": 2, "target": 0.5, "shrink_s": _SHRINK_SECONDS}
    told = {MODEL: {"path": str(Path("models", MODEL).resolve()), "precision": "int8", "rows": 16, "autoscale": scale}}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), told) as service,
        service.client(timeout=_UNTIL_SECONDS) as client,
    ):
        found = measure(service, client)
    record("scaling", [(what, f"{seconds:.1f} s") for what, seconds in found.items()])


if __name__ == "__main__":
    main()
