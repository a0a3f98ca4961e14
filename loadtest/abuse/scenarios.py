"""All scenarios, in the order in which they run."""

from __future__ import annotations

from loadtest.abuse import noisy_neighbour, poison
from loadtest.abuse.fuzz import scenario as fuzz
from loadtest.abuse.scenario import OwnScenario, SharedScenario

SHARED: tuple[SharedScenario, ...] = (poison.SCENARIO, noisy_neighbour.SCENARIO, fuzz.SCENARIO)
"""Run one after the other against the same service."""
OWN: tuple[OwnScenario, ...] = ()
"""Start services of their own."""
