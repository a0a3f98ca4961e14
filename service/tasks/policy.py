"""Policies: episodes whose memory stays with the model, and whole histories without one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from service.engine.episodes import CloseJob, Episodes, OpenJob, PolicyStep, Row, StepJob, Stepped
from service.engine.futures import Pending
from service.package import Policy
from service.tasks.classification import softmax
from service.tasks.errors import InputError, demand_seed


@dataclass(frozen=True, slots=True)
class Action:
    """`discrete` is an index with the `scores` of all, `continuous` a vector."""

    discrete: int | None = None
    continuous: tuple[float, ...] | None = None
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of a history as callers have it: what was seen, what was done, what it brought."""

    state: Sequence[float]
    action: int | Sequence[float] | None = None
    reward: float | None = None


class Policies:
    """Requests to steps and answers to actions."""

    def __init__(self, engine: Episodes, policy: Policy, timesteps: int) -> None:
        self.engine, self.policy, self.timesteps = engine, policy, timesteps

    def act(self, history: Sequence[Moment], target_return: float, *, deadline: float | None = None) -> Future[Stepped]:
        """What follows from a whole history, the last moment of which has no action yet."""
        if not history:
            raise InputError("history is empty; it has at least the present state", field="history")
        self._check_length(len(history), "history")
        to_go = self._number(target_return, "target_return")
        steps = []
        for index, moment in enumerate(history):
            field = f"history[{index}]"
            is_last = index == len(history) - 1
            state = self._vector(moment.state, self.policy.state_size, f"{field}.state")
            action = None if is_last else self._action(moment.action, f"{field}.action")
            steps.append(PolicyStep(to_go, state, action))
            if not is_last:
                to_go -= self._number(moment.reward, f"{field}.reward")
        job = StepJob(None, steps, deadline=deadline)
        self.engine.submit(job)
        return job.future

    def begin(self, target_return: float, *, greedy: bool = True, seed: int | None = None) -> Pending[Episode]:
        to_go = self._number(target_return, "target_return")
        demand_seed(seed)
        job = OpenJob()
        self.engine.submit(job)
        return Pending([job.future], lambda rows: Episode(self, rows[0], to_go, greedy, seed))

    def action(self, answer: Stepped, rng: np.random.Generator | None = None) -> Action:
        values = answer.values
        if self.policy.actions == "continuous":
            return Action(continuous=tuple(float(value) for value in values))
        chances = softmax(values)
        chosen = int(values.argmax()) if rng is None else int(rng.choice(len(chances), p=chances / chances.sum()))
        return Action(discrete=chosen, scores=tuple(float(chance) for chance in chances))

    def taken(self, action: Action) -> np.ndarray:
        """An action as the model reads it: discrete ones as a one among zeros."""
        if action.continuous is not None:
            return np.asarray(action.continuous, np.float32)
        assert action.discrete is not None
        return self._action(action.discrete, "taken")

    def _action(self, action: int | Sequence[float] | None, field: str) -> np.ndarray:
        size = self.policy.action_size
        if self.policy.actions == "continuous":
            if action is None or isinstance(action, int):
                raise InputError(f"{field} is missing; it has {size} numbers", field=field, limit=size)
            return self._vector(action, size, field)
        if not isinstance(action, int) or not 0 <= action < size:
            raise InputError(f"{field} is {action!r}; actions are 0 to {size - 1}", field=field, limit=size - 1)
        return np.eye(size, dtype=np.float32)[action]

    def _vector(self, values: Sequence[float], size: int, field: str) -> np.ndarray:
        vector = np.asarray(values, np.float32).reshape(-1)
        if len(vector) != size:
            raise InputError(f"{field} has {len(vector)} numbers; the model takes {size}", field=field, limit=size)
        if not np.isfinite(vector).all():
            raise InputError(f"{field} has a value that is not a number", field=field)
        return vector

    def _number(self, value: float | None, field: str) -> float:
        if value is None or not np.isfinite(value):
            raise InputError(f"{field} is {value}; it has to be a number", field=field)
        return float(value)

    def _check_length(self, count: int, field: str) -> None:
        if count > self.timesteps:
            raise InputError(
                f"{field} has {count:,} steps; the model knows {self.timesteps:,}", field=field, limit=self.timesteps
            )


class Episode:
    """One run of the environment. Each step gives the state and what the last action brought; back comes an action."""

    def __init__(self, policies: Policies, row: Row, to_go: float, greedy: bool, seed: int | None) -> None:
        self._policies, self._row, self._to_go = policies, row, to_go
        self._rng = None if greedy else np.random.default_rng(seed)
        self._last: Action | None = None
        self._count = 0

    def step(
        self, state: Sequence[float], reward: float | None = None, *, taken: int | Sequence[float] | None = None
    ) -> Action:
        """`taken` only where something else was done than the last answer said."""
        job = self.submit(state, reward, taken=taken)
        return self.answer(job.result())

    def submit(
        self, state: Sequence[float], reward: float | None = None, *, taken: int | Sequence[float] | None = None
    ) -> Future[Stepped]:
        policies = self._policies
        policies._check_length(self._count + 1, "episode")
        seen = policies._vector(state, policies.policy.state_size, "state")
        if self._last is None:
            steps = [PolicyStep(self._to_go, seen)]
        else:
            done = policies.taken(self._last) if taken is None else policies._action(taken, "taken")
            self._to_go -= policies._number(reward, "reward")
            steps = [PolicyStep(0.0, seen, done), PolicyStep(self._to_go, seen)]
        job = StepJob(self._row, steps)
        policies.engine.submit(job)
        self._count += 1
        return job.future

    def answer(self, found: Stepped) -> Action:
        self._last = self._policies.action(found, self._rng)
        return self._last

    def did(self, action: int | Sequence[float]) -> None:
        """What was done at the last step, where it is known before the next."""
        taken = self._policies._action(action, "action")
        discrete = isinstance(action, int)
        self._last = Action(discrete=action) if discrete else Action(continuous=tuple(taken.tolist()))  # type: ignore[arg-type]

    def close(self) -> None:
        self.leave().result()

    def leave(self) -> Future[None]:
        """Gives the row back; nobody has to wait for it."""
        job = CloseJob(self._row)
        self._policies.engine.submit(job)
        return job.future

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._policies.engine.is_alive:
            self.close()
