"""All scenarios, in the order in which they run."""

from __future__ import annotations

from loadtest.abuse import hostile_sizes, noisy_neighbour, poison, slow_clients
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
OWN: tuple[OwnScenario, ...] = ()
"""Start services of their own."""
