"""Actions, histories and episodes of policies."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from headwaiter.engine.episodes import CloseJob, EpisodeState, PolicyStep, StepJob, StepResult
from headwaiter.engine.futures import Pending
from headwaiter.engine.jobs import ClosedError

if TYPE_CHECKING:
    from headwaiter.tasks.policy import PolicyTask


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
            self._return_to_go = task.next_return(self._return_to_go, reward, "reward")
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
        """Free the episode's slot without waiting for it. A closed engine has freed it already."""
        job = CloseJob(self._episode_state)
        try:
            self._task.engine.submit(job)
        except ClosedError:
            job.succeed(None)
        return job.future

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task.engine.is_healthy:
            self.close()


class OpeningEpisode(Pending[Episode]):
    """An episode that is being opened. If its consumer is cancelled, the slot is freed even if it was taken already."""

    def cancel(self) -> None:
        super().cancel()
        for future in self._futures:
            if not future.cancelled() and future.exception() is None:
                self._combine([future.result()]).release()
