"""Counters of an engine; any thread may read them without a lock.

Each worker has its own, written by its thread only. `accepted`, `waiting` and the cancellations of queued jobs are
written under the lock of the queue, whose counters are those of its only worker or, in a pool, separate ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self


@dataclass(slots=True)
class EngineCounters:
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0  # including jobs whose deadline passed
    failed: int = 0
    waiting: int = 0
    slots_in_use: int = 0
    slots: int = 0
    steps: int = 0
    slot_steps: int = 0  # active slots, summed over steps
    input_tokens: int = 0
    output_tokens: int = 0
    padding_elements: int = 0  # input elements that are padding
    elements: int = 0  # input elements including padding
    queue_seconds: float = 0.0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    def snapshot(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def total(cls, parts: Iterable[EngineCounters]) -> Self:
        parts = list(parts)
        return cls(*(sum(getattr(part, field.name) for part in parts) for field in fields(cls)))
