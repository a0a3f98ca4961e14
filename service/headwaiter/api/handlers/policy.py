from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import RequestExecutor, attach_total_usage, attach_usage
from headwaiter.engine.episodes import StepResult
from headwaiter.engine.futures import Pending
from headwaiter.engine.jobs import ClosedError
from headwaiter.tasks.errors import InputError, check_seed
from headwaiter.tasks.forward_pass import WithUsage
from headwaiter.tasks.policy import Action, Episode, HistoryStep, PolicyTask
from headwaiter.tasks.results import Timing, Usage
from headwaiter.v1 import policy_pb2 as pb

_STEP_COST = 16  # preprocessing cost of a history step without its state, in characters of text


def policy(executor: RequestExecutor, model: Any) -> Handlers:
    task: PolicyTask = model.task

    async def act(request: pb.ActRequest, context: RequestContext) -> Message:
        seed = request.seed if request.HasField("seed") else None
        check_seed(seed)
        greedy = not request.HasField("greedy") or request.greedy
        deadline = context.deadline
        submits = [
            partial(_act, task, history, None if greedy else _generator(seed, index), f"history[{index}]", deadline)
            for index, history in enumerate(request.history)
        ]
        outputs = await executor.execute("history", submits, cost=_preprocessing_cost(request.history))
        response = pb.ActResponse(results=[_action_message(output.answer) for output in outputs])
        return attach_total_usage(executor, context, response, outputs)

    async def episode(
        requests: AsyncIterator[pb.EpisodeRequest], context: RequestContext
    ) -> AsyncGenerator[Message, None]:
        current: Episode | None = None
        try:
            async for request in requests:
                if request.WhichOneof("event") == "start":
                    if current is not None:
                        raise InputError("start was sent twice; an episode has one start", field="start")
                    current = await _start(executor, task, request.start)
                elif current is None:
                    raise InputError("start is missing; it must be the first message of an episode", field="start")
                else:
                    yield await _step(executor, context, current, request.observation)
        finally:
            if current is not None:
                with suppress(ClosedError):
                    current.release()

    return {"Act": act, "Episode": episode}


def _preprocessing_cost(histories: Sequence[pb.History]) -> int:
    """Estimated preprocessing cost, in characters of text."""
    return sum(len(step.state) + _STEP_COST for history in histories for step in history.steps)


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


async def _start(executor: RequestExecutor, task: PolicyTask, start: pb.Start) -> Episode:
    greedy = not start.HasField("greedy") or start.greedy
    open_episode = partial(
        task.open_episode,
        _target_return(start, "start.target_return"),
        greedy=greedy,
        seed=start.seed if start.HasField("seed") else None,
    )
    current = await (await executor.run_preprocessing(open_episode, 0))
    try:
        await _replay(current, start)
    except BaseException:
        current.release()
        raise
    return current


async def _replay(current: Episode, start: pb.Start) -> None:
    """Restore the state of an interrupted episode by running the steps of its history with the actions taken."""
    reward = None
    for index, step in enumerate(start.history):
        field = f"start.history[{index}]"
        if not step.HasField("action"):
            raise InputError(f"{field}.action is missing; every step of a history needs one", field=f"{field}.action")
        try:
            current.answer(await _run_step(current, step.state, reward, None))
            current.record_action(_action_value(step.action))
        except InputError as error:
            raise _with_field_prefix(error, field) from None
        reward = step.reward if step.HasField("reward") else None


async def _step(
    executor: RequestExecutor, context: RequestContext, current: Episode, observation: pb.Observation
) -> Message:
    taken = _action_value(observation.taken) if observation.HasField("taken") else None
    reward = observation.reward if observation.HasField("reward") else None
    result = await _run_step(current, observation.state, reward, taken)
    context.timing = _timing(result)
    return attach_usage(executor, context, pb.EpisodeResponse(action=_action_message(current.answer(result))))


async def _run_step(current: Episode, state: Any, reward: float | None, taken: Any) -> StepResult:
    return await Pending([current.submit(state, reward, taken=taken)], lambda results: results[0])


def _timing(result: StepResult, prepare_seconds: float = 0.0) -> Timing:
    return Timing(1e3 * result.queue_seconds, 1e3 * prepare_seconds, 1e3 * result.run_seconds)


def _target_return(message: pb.History | pb.Start, field: str) -> float:
    if not message.HasField("target_return"):
        raise InputError(f"{field} is missing; set it to the sum of rewards to aim for", field=field)
    return message.target_return


def _history_step(step: pb.Step) -> HistoryStep:
    action = _action_value(step.action) if step.HasField("action") else None
    return HistoryStep(step.state, action, step.reward if step.HasField("reward") else None)


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
