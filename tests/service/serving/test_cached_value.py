"""Reads are shared, repeated about once a second, and bounded in time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from headwaiter.engine.jobs import ClosedError
from headwaiter.serving.cached_value import CachedValue


async def test_get_concurrent_calls_share_one_read() -> None:
    reads: list[float] = []

    def read() -> int:
        reads.append(time.monotonic())
        time.sleep(0.05)
        return len(reads)

    value = CachedValue(read, max_age_seconds=0.2)
    assert await asyncio.gather(*(value.get() for _ in range(20))) == [1] * 20
    assert await value.get() == 1
    await asyncio.sleep(0.25)
    assert await value.get() == 2
    assert len(reads) == 2


async def test_get_slow_read_returns_last_value_in_time() -> None:
    blocked = threading.Event()
    blocked.set()

    def read() -> str:
        blocked.wait(20)
        return "value"

    value = CachedValue(read, max_age_seconds=0.0, timeout_seconds=0.1)
    assert await value.get() == "value"
    blocked.clear()
    started_at = time.monotonic()
    assert await value.get() == "value"
    assert time.monotonic() - started_at < 5
    blocked.set()


async def test_get_without_any_value_is_unavailable() -> None:
    def read() -> str:
        raise RuntimeError("the controller does not answer")

    with pytest.raises(ClosedError, match="retry later"):
        await CachedValue(read).get()
