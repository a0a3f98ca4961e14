"""Counters that an engine keeps. One thread writes each; anyone may read, at the cost of reading a number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self


@dataclass(slots=True)
class Meters:
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0  # or too late
    failed: int = 0
    refused: int = 0
    waiting: int = 0
    rows_in_use: int = 0
    rows: int = 0
    steps: int = 0
    row_steps: int = 0  # rows that took part, summed over steps
    input_tokens: int = 0
    output_tokens: int = 0
    padding: int = 0  # places of inputs that were filled up
    places: int = 0  # all places of inputs
    queue_seconds: float = 0.0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    def snapshot(self) -> dict[str, float]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def total(cls, parts: Iterable[Meters]) -> Self:
        parts = list(parts)
        return cls(*(sum(getattr(part, each.name) for part in parts) for each in fields(cls)))
