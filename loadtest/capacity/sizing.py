"""Number and cost of replicas for a fixed rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOURS_PER_MONTH = 730


@dataclass(frozen=True, slots=True)
class FleetSize:
    rate: float  # requests per second
    rate_per_replica: float  # within the objective
    replicas: int
    utilisation: float  # rate relative to the capacity
    replica_hours: float  # per month
    cost: float | None  # per month; None without a price


def size_fleet(rate: float, rate_per_replica: float, *, spare: int = 0, price: float | None = None) -> FleetSize:
    """Size a fleet that meets the objective even if `spare` replicas fail."""
    replicas = math.ceil(rate / rate_per_replica) + spare
    hours = replicas * HOURS_PER_MONTH
    return FleetSize(
        rate,
        rate_per_replica,
        replicas,
        rate / (replicas * rate_per_replica),
        hours,
        None if price is None else price * hours,
    )
