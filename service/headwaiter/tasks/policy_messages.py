"""Requests and responses of policies: stateless calls with a whole history, and episodes as bidirectional streams."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headwaiter.engine.episodes import StepResult
from headwaiter.engine.futures import Pending
from headwaiter.tasks.episode import Action, Episode, HistoryStep
from headwaiter.tasks.errors import InputError, check_inputs, check_seed
from headwaiter.tasks.forward_pass import WithUsage
from headwaiter.tasks.messages import optional
from headwaiter.tasks.results import Timing, Usage
from headwaiter.tasks.task import Submission
from headwaiter.v1 import policy_pb2 as pb

if TYPE_CHECKING:
    from headwaiter.tasks.policy import PolicyTask

_STEP_COST = 16  # preprocessing cost of a history step without its state, in characters of text


def parse_act(task: PolicyTask, request: pb.ActRequest, deadline: float | None) -> Submission[WithUsage[Action]]:
    check_inputs(request.history, "history")
    seed = optional(request, "seed")
    check_seed(seed)
    greedy = optional(request, "greedy", True)
    inputs = [
        partial(_act, task, history, None if greedy else _generator(seed, index), f"history[{index}]", deadline)
        for index, history in enumerate(request.history)
    ]
    cost = sum(len(step.state) + _STEP_COST for history in request.history for step in history.steps)
    return Submission(inputs, cost=cost)


def format_act(results: Sequence[WithUsage[Action]]) -> pb.ActResponse:
    return pb.ActResponse(results=[_action_message(result.answer) for result in results])


def _act(
    task: PolicyTask, history: pb.History, rng: np.random.Generator | None, field: str, deadline: float | None
) -> Pending[WithUsage[Action]]:
    started_at = time.monotonic()
    steps, target = [_history_step(step) for step in history.steps], _target_return(history, f"{field}.target_return")
    try:
        future = task.act(steps, target, deadline=deadline)
    except InputError as error:
        raise _with_field_prefix(error, field) from None
    prepare_seconds = time.monotonic() - started_at

    def to_action(results: list[StepResult]) -> WithUsage[Action]:
        return WithUsage(task.action(results[0], rng), Usage(), _timing(results[0], prepare_seconds))

    return Pending([future], to_action)


class EpisodeSession:
    """One stream of the method Episode: a start, then observations, each answered by an action."""

    def __init__(self, task: PolicyTask) -> None:
        self._task = task
        self._episode: Episode | None = None

    async def receive(self, request: pb.EpisodeRequest) -> tuple[pb.EpisodeResponse, Timing] | None:
        if request.WhichOneof("event") == "start":
            if self._episode is not None:
                raise InputError("start was sent twice; an episode has one start", field="start")
            self._episode = await _start(self._task, request.start)
            return None
        if self._episode is None:
            raise InputError("start is missing; it must be the first message of an episode", field="start")
        observation = request.observation
        taken = _action_value(observation.taken) if observation.HasField("taken") else None
        result = await _run_step(self._episode, observation.state, optional(observation, "reward"), taken)
        return pb.EpisodeResponse(action=_action_message(self._episode.answer(result))), _timing(result)

    def close(self) -> None:
        if self._episode is not None:
            self._episode.release()


async def _start(task: PolicyTask, start: pb.Start) -> Episode:
    episode = await task.open_episode(
        _target_return(start, "start.target_return"),
        greedy=optional(start, "greedy", True),
        seed=optional(start, "seed"),
    )
    try:
        await _replay(episode, start)
    except BaseException:
        episode.release()
        raise
    return episode


async def _replay(episode: Episode, start: pb.Start) -> None:
    """Restore the state of an interrupted episode by running the steps of its history with the actions taken."""
    reward = None
    for index, step in enumerate(start.history):
        field = f"start.history[{index}]"
        if not step.HasField("action"):
            raise InputError(f"{field}.action is missing; every step of a history needs one", field=f"{field}.action")
        try:
            episode.answer(await _run_step(episode, step.state, reward, None))
            episode.record_action(_action_value(step.action))
        except InputError as error:
            raise _with_field_prefix(error, field) from None
        reward = optional(step, "reward")


async def _run_step(
    episode: Episode, state: Sequence[float], reward: float | None, taken: int | Sequence[float] | None
) -> StepResult:
    return await Pending([episode.submit(state, reward, taken=taken)], lambda results: results[0])


def _timing(result: StepResult, prepare_seconds: float = 0.0) -> Timing:
    return Timing(1e3 * result.queue_seconds, 1e3 * prepare_seconds, 1e3 * result.run_seconds)


def _target_return(message: pb.History | pb.Start, field: str) -> float:
    if not message.HasField("target_return"):
        raise InputError(f"{field} is missing; set it to the sum of rewards to aim for", field=field)
    return message.target_return


def _history_step(step: pb.Step) -> HistoryStep:
    action = _action_value(step.action) if step.HasField("action") else None
    return HistoryStep(step.state, action, optional(step, "reward"))


def _action_value(action: pb.Action) -> Any:
    return action.discrete if action.WhichOneof("choice") == "discrete" else list(action.continuous.values)


def _action_message(action: Action) -> pb.Action:
    if action.continuous is not None:
        return pb.Action(continuous=pb.Vector(values=action.continuous))
    return pb.Action(discrete=action.discrete, scores=action.scores)


def _with_field_prefix(error: InputError, field: str) -> InputError:
    """The same error, with its field given relative to the request instead of to one history."""
    subfield = error.field.removeprefix("history")
    path = ".".join(part for part in (field, f"steps{subfield}" if subfield.startswith("[") else subfield) if part)
    return InputError(str(error).replace(error.field, path, 1), field=path, limit=error.limit)


def _generator(seed: int | None, index: int) -> np.random.Generator:
    return np.random.default_rng(None if seed is None else (seed, index))
