"""Policy models: stateful episodes with a KV cache, and stateless requests with the whole history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from headwaiter.engine.episodes import Episodes, OpenJob, PolicyStep, StepJob, StepResult
from headwaiter.engine.futures import Pending
from headwaiter.engine.settings import ModelSettings
from headwaiter.package.manifest import Package
from headwaiter.tasks.classification import softmax
from headwaiter.tasks.episode import Action, Episode, HistoryStep, OpeningEpisode
from headwaiter.tasks.errors import InputError, check_seed
from headwaiter.tasks.model import Model
from headwaiter.tasks.policy_messages import EpisodeSession, format_act, parse_act
from headwaiter.tasks.task import SessionMethod, Task, TaskMethod, UnaryMethod

MAX_NUMBER = 3.4028235e38  # of rewards and returns, which are float32 in the model


class PolicyTask(Task[Episodes]):
    """Validates policy requests, submits them to the engine and converts the results to actions."""

    def __init__(self, package: Package, engine: Episodes, settings: ModelSettings) -> None:
        super().__init__(package, engine, settings)
        assert self.manifest.policy is not None
        self.policy, self.timesteps = self.manifest.policy, self.manifest.limits["timesteps"]

    def methods(self) -> Mapping[str, TaskMethod]:
        return {
            "Act": UnaryMethod(partial(parse_act, self), format_act),
            "Episode": SessionMethod(partial(EpisodeSession, self)),
        }

    def warm_up(self) -> None:
        self.act([HistoryStep([0.0] * self.policy.state_size)], 0.0).result()

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
                return_to_go = self.next_return(return_to_go, step.reward, f"{field}.reward")
        job = StepJob(None, steps, deadline=deadline)
        self.engine.submit(job)
        return job.future

    def open_episode(self, target_return: float, *, greedy: bool = True, seed: int | None = None) -> Pending[Episode]:
        return_to_go = self._number(target_return, "target_return")
        check_seed(seed)
        job = OpenJob()
        self.engine.submit(job)
        return OpeningEpisode([job.future], lambda states: Episode(self, states[0], return_to_go, greedy, seed))

    def next_return(self, return_to_go: float, reward: float | None, field: str) -> float:
        """The return-to-go after a reward. Raises InputError if it exceeds float32."""
        remaining = return_to_go - self._number(reward, field)
        if abs(remaining) > MAX_NUMBER:
            limit = math.copysign(MAX_NUMBER, remaining)
            message = f"{field} makes the remaining return {remaining:g}; the limit is {limit:g}"
            raise InputError(message, field=field, limit=limit)
        return remaining

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
            shown = {int: str(action), type(None): "missing"}.get(type(action), "a vector")
            raise InputError(f"{field} is {shown}; it must be from 0 to {size - 1}", field=field, limit=size - 1)
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


class PolicyModel(Model[PolicyTask]):
    def act(self, history: Sequence[HistoryStep], target_return: float) -> Action:
        """Return the action for the last state of a history."""
        self.admit()
        return self.task.action(self.task.act(history, target_return).result())

    def episode(self, target_return: float, *, greedy: bool = True, seed: int | None = None) -> Episode:
        """Open an episode; unless `greedy`, discrete actions are sampled."""
        return self.task.open_episode(target_return, greedy=greedy, seed=seed).result()
