"""Continuous load from several clients, with a log of every request."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headwaiter.client import Client, RetryPolicy
from loadtest.cluster.ray_cluster import Cluster

CallFunction = Callable[[Client, str], str]
"""Sends one request with the given id; returns the result to log."""
TIMEOUT_SECONDS = 40.0
RETRIES = RetryPolicy(attempt_timeout=10)  # requests take one or two seconds
_PAUSE_SECONDS = 0.05


@dataclass
class CallLog:
    answered: dict[str, str] = field(default_factory=dict)
    """Result by request id."""
    failed: list[str] = field(default_factory=list)
    longest: float = 0.0


@contextmanager
def continuous_load(cluster: Cluster, *call_functions: CallFunction) -> Iterator[CallLog]:
    """Run one client per function during the block, starting at different workers. The log is complete afterwards."""
    call_log, stopped, lock = CallLog(), threading.Event(), threading.Lock()

    def send_requests(index: int, call_function: CallFunction) -> None:
        with Client(cluster.address(index % len(cluster.workers)), timeout=TIMEOUT_SECONDS, retries=RETRIES) as client:
            while not stopped.wait(_PAUSE_SECONDS):
                request_id, started_at = uuid.uuid4().hex, time.monotonic()
                try:
                    result = call_function(client, request_id)
                except Exception as error:
                    call_log.failed.append(f"{request_id} after {time.monotonic() - started_at:.1f} s: {error!r}")
                    continue
                with lock:
                    call_log.answered[request_id] = result
                    call_log.longest = max(call_log.longest, time.monotonic() - started_at)

    threads = [
        threading.Thread(target=send_requests, args=(index, call_function))
        for index, call_function in enumerate(call_functions)
    ]
    for thread in threads:
        thread.start()
    try:
        yield call_log
    finally:
        stopped.set()
        for thread in threads:
            thread.join(2 * TIMEOUT_SECONDS)
            assert not thread.is_alive(), "a client does not stop"
