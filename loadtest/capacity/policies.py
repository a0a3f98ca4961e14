"""Who decides how many replicas there are: what is known goes in, a number comes out."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from service.scaling import GROW_SECONDS, LOOK_BACK_SECONDS, REPORT_SECONDS, RowsPolicy


class NoPolicyError(Exception):
    """There is no such policy; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class Load:
    """Of one replica that answers, averaged over the look-back."""

    share: float  # of its rows in use
    wait: float  # seconds that a newcomer would wait
    ongoing: float  # calls, waiting ones too


@dataclass(frozen=True, slots=True)
class State:
    now: float  # seconds
    target: int  # replicas that were wanted last
    loads: Sequence[Load]


class Policy(Protocol):
    name: str
    every: float  # seconds from one decision to the next
    look_back: float  # seconds that loads are averaged over

    def wanted(self, state: State) -> int: ...


class ServeDefault:
    """Ray Serve's own: so many calls under way for each replica; a change must have been wanted for a while."""

    every, look_back = 10.0, 30.0

    def __init__(self, ongoing: float, up_delay: float = 10.0, down_delay: float = 300.0) -> None:
        self.name = f"Serve's default, {ongoing:g} calls a replica"
        self._ongoing, self._delays = ongoing, {1: up_delay, -1: down_delay}
        self._direction, self._since = 0, 0.0

    def wanted(self, state: State) -> int:
        desired = math.ceil(sum(each.ongoing for each in state.loads) / self._ongoing)
        direction = (desired > state.target) - (desired < state.target)
        if direction != self._direction:
            self._direction, self._since = direction, state.now
        if direction and state.now - self._since >= self._delays[direction]:
            self._direction = 0
            return desired
        return state.target


class ServePolicy:
    """Any policy in the form that Ray Serve calls: a context in, a number of replicas and a state out. More are made
    when they have been wanted for `up_delay` seconds: our replicas are rendered with that."""

    every, look_back = REPORT_SECONDS, LOOK_BACK_SECONDS

    def __init__(
        self, name: str, decide: Callable[[Any], tuple[int, dict[str, Any]]], up_delay: float = GROW_SECONDS
    ) -> None:
        self.name, self._decide, self._up_delay = name, decide, up_delay
        self._state: dict[str, Any] = {}
        self._last_up: float | None = None
        self._wanted_since: float | None = None  # more than there are

    def wanted(self, state: State) -> int:
        names = [str(index) for index in range(len(state.loads))]
        metrics = {"share": [each.share for each in state.loads], "wait_seconds": [each.wait for each in state.loads]}
        context = SimpleNamespace(
            current_time=state.now,
            target_num_replicas=state.target,
            current_num_replicas=len(state.loads),
            total_num_requests=sum(each.ongoing for each in state.loads),
            aggregated_metrics={name: dict(zip(names, values, strict=True)) for name, values in metrics.items()},
            policy_state=self._state,
            last_scale_up_time=self._last_up,
        )
        wanted, self._state = self._decide(context)
        if wanted <= state.target:
            self._wanted_since = None
            return wanted
        if self._wanted_since is None:
            self._wanted_since = state.now
        if state.now - self._wanted_since < self._up_delay:
            return state.target
        self._wanted_since, self._last_up = None, state.now
        return wanted


def ours(target: float, wait: float, shrink: float) -> Policy:
    """As `autoscale` in serve.yaml is rendered: `wait` is the longest that is not refused, in seconds."""
    return ServePolicy(f"Headwaiter's, {target:g} of the rows in use", RowsPolicy(target, wait / 2, shrink))


def named(text: str) -> Policy:
    """`MODULE:CLASS {"argument": value}`: a policy for Ray Serve, made with these arguments."""
    place, _, arguments = text.partition(" ")
    module, _, name = place.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)(**json.loads(arguments or "{}"))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise NoPolicyError(
            f"{text!r} is no policy ({error}); it is written as 'MODULE:CLASS {{\"argument\": value}}'"
        ) from error
    return ServePolicy(f"{name} {arguments}".strip(), made)
