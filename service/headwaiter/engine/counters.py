"""Counters of an engine. Each field has a single writer thread; any thread may read without a lock."""

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
