"""Policy models: stateful episodes with a KV cache, and stateless requests with the whole history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from headwaiter.engine.episodes import CloseJob, Episodes, EpisodeState, OpenJob, PolicyStep, StepJob, StepResult
from headwaiter.engine.futures import Pending
from headwaiter.package.manifest import Policy
from headwaiter.tasks.classification import softmax
from headwaiter.tasks.errors import InputError, check_seed

MAX_NUMBER = 3.4028235e38  # of rewards and returns, which are float32 in the model


@dataclass(frozen=True, slots=True)
class Action:
    """An action: `discrete` is an index, with the `scores` of all actions; `continuous` is a vector."""

    discrete: int | None = None
    continuous: tuple[float, ...] | None = None
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One environment step: the observed state, the action taken in it and the reward received for it."""

    state: Sequence[float]
    action: int | Sequence[float] | None = None
    reward: float | None = None


class PolicyTask:
    """Validates policy requests, submits them to the engine and converts the results to actions."""

    def __init__(self, engine: Episodes, policy: Policy, timesteps: int) -> None:
        self.engine, self.policy, self.timesteps = engine, policy, timesteps

    def act(
        self, history: Sequence[HistoryStep], target_return: float, *, deadline: float | None = None
    ) -> Future[StepResult]:
        """Submit a whole history. Its last step is the current state; action and reward of that step are ignored."""
        if not history:
            raise InputError("history is empty; it must have at least the current state", field="history")
        self._check_length(len(history), "history")
        return_to_go = self._number(target_return, "target_return")
        steps = []
        for index, step in enumerate(history):
            field = f"history[{index}]"
            is_last = index == len(history) - 1
            state = self._vector(step.state, self.policy.state_size, f"{field}.state")
            action = None if is_last else self._action(step.action, f"{field}.action")
            steps.append(PolicyStep(return_to_go, state, action))
            if not is_last:
                return_to_go -= self._number(step.reward, f"{field}.reward")
        job = StepJob(None, steps, deadline=deadline)
        self.engine.submit(job)
        return job.future

    def open_episode(self, target_return: float, *, greedy: bool = True, seed: int | None = None) -> Pending[Episode]:
        return_to_go = self._number(target_return, "target_return")
        check_seed(seed)
        job = OpenJob()
        self.engine.submit(job)
        return Pending([job.future], lambda states: Episode(self, states[0], return_to_go, greedy, seed))

    def action(self, result: StepResult, rng: np.random.Generator | None = None) -> Action:
        """Return the action of a result; with `rng`, a discrete action is sampled instead of the most likely one."""
        values = result.values
        if not np.isfinite(values).all():
            message = "history has numbers that are too large; the model's output for it is not finite"
            raise InputError(message, field="history")
        if self.policy.actions == "continuous":
            return Action(continuous=tuple(float(value) for value in values))
        probabilities = softmax(values)
        index = (
            int(values.argmax())
            if rng is None
            else int(rng.choice(len(probabilities), p=probabilities / probabilities.sum()))
        )
        return Action(discrete=index, scores=tuple(float(probability) for probability in probabilities))

    def encode_action(self, action: Action) -> np.ndarray:
        """Return an action as a model input; discrete actions are one-hot encoded."""
        if action.continuous is not None:
            return np.asarray(action.continuous, np.float32)
        assert action.discrete is not None
        return self._action(action.discrete, "taken")

    def _action(self, action: int | Sequence[float] | None, field: str) -> np.ndarray:
        size = self.policy.action_size
        if self.policy.actions == "continuous":
            if action is None or isinstance(action, int):
                raise InputError(f"{field} is missing; it must have {size} numbers", field=field, limit=size)
            return self._vector(action, size, field)
        if not isinstance(action, int) or not 0 <= action < size:
            raise InputError(f"{field} is {action!r}; it must be from 0 to {size - 1}", field=field, limit=size - 1)
        return np.eye(size, dtype=np.float32)[action]

    def _vector(self, values: Sequence[float], size: int, field: str) -> np.ndarray:
        vector = np.asarray(values, np.float32).reshape(-1)
        if len(vector) != size:
            raise InputError(f"{field} has {len(vector)} numbers; the model requires {size}", field=field, limit=size)
        if not np.isfinite(vector).all():
            raise InputError(f"{field} has a value that is not finite", field=field)
        return vector

    def _number(self, value: float | None, field: str) -> float:
        if value is None or not np.isfinite(value):
            raise InputError(f"{field} is {value}; it must be a finite number", field=field)
        if abs(value) > MAX_NUMBER:
            limit = math.copysign(MAX_NUMBER, value)
            raise InputError(f"{field} is {value:g}; the limit is {limit:g}", field=field, limit=limit)
        return float(value)

    def _check_length(self, count: int, field: str) -> None:
        if count > self.timesteps:
            raise InputError(
                f"{field} has {count:,} steps; the limit is {self.timesteps:,}", field=field, limit=self.timesteps
            )


class Episode:
    """One episode of an environment: `step` takes a state and the reward of the last action, and returns an action."""

    def __init__(
        self, task: PolicyTask, episode_state: EpisodeState, return_to_go: float, greedy: bool, seed: int | None
    ) -> None:
        self._task, self._episode_state, self._return_to_go = task, episode_state, return_to_go
        self._rng = None if greedy else np.random.default_rng(seed)
        self._last: Action | None = None
        self._count = 0

    def step(
        self, state: Sequence[float], reward: float | None = None, *, taken: int | Sequence[float] | None = None
    ) -> Action:
        """Return the next action. Set `taken` if the last action was not the one returned by the last step."""
        return self.answer(self.submit(state, reward, taken=taken).result())

    def submit(
        self, state: Sequence[float], reward: float | None = None, *, taken: int | Sequence[float] | None = None
    ) -> Future[StepResult]:
        task = self._task
        task._check_length(self._count + 1, "episode")
        observation = task._vector(state, task.policy.state_size, "state")
        if self._last is None:
            steps = [PolicyStep(self._return_to_go, observation)]
        else:
            action = task.encode_action(self._last) if taken is None else task._action(taken, "taken")
            self._return_to_go -= task._number(reward, "reward")
            # The first step is in the cache already, except for its action.
            steps = [PolicyStep(0.0, observation, action), PolicyStep(self._return_to_go, observation)]
        job = StepJob(self._episode_state, steps)
        task.engine.submit(job)
        self._count += 1
        return job.future

    def answer(self, result: StepResult) -> Action:
        """Return the action of a submitted step and remember it as the last action."""
        self._last = self._task.action(result, self._rng)
        return self._last

    def record_action(self, action: int | Sequence[float]) -> None:
        """Replace the last action with the one that was taken, as when a history is replayed."""
        vector = self._task._action(action, "action")
        self._last = Action(discrete=action) if isinstance(action, int) else Action(continuous=tuple(vector.tolist()))

    def close(self) -> None:
        self.release().result()

    def release(self) -> Future[None]:
        """Free the episode's slot without waiting for it."""
        job = CloseJob(self._episode_state)
        self._task.engine.submit(job)
        return job.future

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task.engine.is_alive:
            self.close()
