"""All scenarios, in the order in which they run."""

from __future__ import annotations

from loadtest.abuse import drain, hostile_sizes, noisy_neighbour, poison, sick_replica, slow_clients
from loadtest.abuse.fuzz import scenario as fuzz
from loadtest.abuse.scenario import OwnScenario, SharedScenario

SHARED: tuple[SharedScenario, ...] = (
    poison.SCENARIO,
    hostile_sizes.SCENARIO,
    slow_clients.SCENARIO,
    noisy_neighbour.SCENARIO,
    fuzz.SCENARIO,
)
"""Run one after the other against the same service."""
OWN: tuple[OwnScenario, ...] = (sick_replica.SCENARIO, drain.SCENARIO)
"""Start services of their own."""
