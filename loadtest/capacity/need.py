"""How many replicas a rate needs, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOURS_OF_A_MONTH = 730


@dataclass(frozen=True, slots=True)
class Need:
    rate: float  # calls a second
    one_carries: float  # within the objective
    replicas: int
    used: float  # of what they carry
    replica_hours: float  # a month
    cost: float | None  # a month, where a price is known


def need(rate: float, one_carries: float, *, spare: int = 0, price: float | None = None) -> Need:
    """`spare` replicas may fail without the objective."""
    replicas = math.ceil(rate / one_carries) + spare
    hours = replicas * HOURS_OF_A_MONTH
    return Need(
        rate, one_carries, replicas, rate / (replicas * one_carries), hours, None if price is None else price * hours
    )
