"""Autoscaling policies for the fleet simulation."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from headwaiter.serving.autoscaling import (
    ESTIMATED_WAIT,
    LOOK_BACK_SECONDS,
    REPORT_SECONDS,
    SCALE_UP_DELAY_SECONDS,
    UTILISATION,
    UtilisationPolicy,
)


class UnknownPolicyError(Exception):
    """The policy cannot be loaded; the message shows the expected form."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Load of one ready replica, averaged over the look-back window."""

    utilisation: float  # fraction of slots in use
    wait: float  # estimated queueing delay in seconds
    ongoing: float  # running and queued requests


@dataclass(frozen=True, slots=True)
class PolicyInput:
    now: float  # seconds
    target: int  # last desired number of replicas
    loads: Sequence[ReplicaLoad]


class Policy(Protocol):
    name: str
    interval_seconds: float  # between decisions
    lookback_seconds: float  # window over which loads are averaged

    def desired_replicas(self, state: PolicyInput) -> int: ...


class ServeDefaultPolicy:
    """Ray Serve's default: a target number of ongoing requests per replica, applied after a delay."""

    interval_seconds, lookback_seconds = 10.0, 30.0

    def __init__(self, ongoing: float, upscale_delay: float = 10.0, downscale_delay: float = 300.0) -> None:
        self.name = f"Serve's default, {ongoing:g} ongoing requests per replica"
        self._ongoing, self._delays = ongoing, {1: upscale_delay, -1: downscale_delay}
        self._direction, self._since = 0, 0.0

    def desired_replicas(self, state: PolicyInput) -> int:
        desired = math.ceil(sum(load.ongoing for load in state.loads) / self._ongoing)
        direction = (desired > state.target) - (desired < state.target)
        if direction != self._direction:
            self._direction, self._since = direction, state.now
        if direction and state.now - self._since >= self._delays[direction]:
            self._direction = 0
            return desired
        return state.target


class RayServePolicy:
    """A Ray Serve policy function; scale-up is applied after `upscale_delay` seconds, as Serve does."""

    interval_seconds, lookback_seconds = REPORT_SECONDS, LOOK_BACK_SECONDS

    def __init__(
        self,
        name: str,
        decide: Callable[[Any], tuple[int, dict[str, Any]]],
        upscale_delay: float = SCALE_UP_DELAY_SECONDS,
    ) -> None:
        self.name, self._decide, self._upscale_delay = name, decide, upscale_delay
        self._state: dict[str, Any] = {}
        self._last_scale_up: float | None = None
        self._upscale_desired_since: float | None = None

    def desired_replicas(self, state: PolicyInput) -> int:
        names = [str(index) for index in range(len(state.loads))]
        metrics = {
            UTILISATION: [load.utilisation for load in state.loads],
            ESTIMATED_WAIT: [load.wait for load in state.loads],
        }
        context = SimpleNamespace(
            current_time=state.now,
            target_num_replicas=state.target,
            current_num_replicas=len(state.loads),
            total_num_requests=sum(load.ongoing for load in state.loads),
            aggregated_metrics={name: dict(zip(names, values, strict=True)) for name, values in metrics.items()},
            policy_state=self._state,
            last_scale_up_time=self._last_scale_up,
        )
        desired, self._state = self._decide(context)
        if desired <= state.target:
            self._upscale_desired_since = None
            return desired
        if self._upscale_desired_since is None:
            self._upscale_desired_since = state.now
        if state.now - self._upscale_desired_since < self._upscale_delay:
            return state.target
        self._upscale_desired_since, self._last_scale_up = None, state.now
        return desired


def headwaiter_policy(target: float, max_wait: float, scale_down_delay: float) -> Policy:
    """Return the policy that the service deploys; `max_wait` is `max_queue_wait_ms` in seconds."""
    return RayServePolicy(
        f"Headwaiter, target utilisation {target:g}", UtilisationPolicy(target, max_wait / 2, scale_down_delay)
    )


def load_policy(text: str) -> Policy:
    """Load a Ray Serve policy from `MODULE:CLASS {"argument": value}`; raise UnknownPolicyError if that fails."""
    path, _, arguments = text.partition(" ")
    module, _, name = path.partition(":")
    try:
        policy = getattr(importlib.import_module(module), name)(**json.loads(arguments or "{}"))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UnknownPolicyError(
            f"{text!r} is not a policy ({error}); expected 'MODULE:CLASS {{\"argument\": value}}'"
        ) from error
    return RayServePolicy(f"{name} {arguments}".strip(), policy)
