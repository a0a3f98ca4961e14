"""Callers who never rest, each with a client of its own, and an account of every call."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from loadtest.cluster import Cluster
from service.client import Client, Retries

Ask = Callable[[Client, str], str]
"""Makes one call with this request id; returns what shall be remembered of the answer."""
TIMEOUT = 40.0
RETRIES = Retries(patience=10)  # a call here takes a second or two
_PAUSE_SECONDS = 0.05


@dataclass
class Account:
    answered: dict[str, str] = field(default_factory=dict)
    """What each request id was answered with."""
    failed: list[str] = field(default_factory=list)
    longest: float = 0.0


@contextmanager
def load(cluster: Cluster, *asks: Ask) -> Iterator[Account]:
    """A caller for each, as long as the block lasts; afterwards the account is complete. They begin at different
    workers."""
    account, stop, lock = Account(), threading.Event(), threading.Lock()

    def call(index: int, ask: Ask) -> None:
        with Client(cluster.address(index % len(cluster.workers)), timeout=TIMEOUT, retries=RETRIES) as client:
            while not stop.wait(_PAUSE_SECONDS):
                request_id, begun = uuid.uuid4().hex, time.monotonic()
                try:
                    answer = ask(client, request_id)
                except Exception as error:
                    account.failed.append(f"{request_id} after {time.monotonic() - begun:.1f} s: {error!r}")
                    continue
                with lock:
                    account.answered[request_id] = answer
                    account.longest = max(account.longest, time.monotonic() - begun)

    callers = [threading.Thread(target=call, args=numbered) for numbered in enumerate(asks)]
    for each in callers:
        each.start()
    try:
        yield account
    finally:
        stop.set()
        for each in callers:
            each.join()
