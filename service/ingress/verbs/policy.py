from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import Message

from headwaiter.v1 import policy_pb2 as pb
from service.engine.episodes import Stepped
from service.engine.futures import Pending
from service.engine.jobs import ClosedError
from service.ingress.calls import Call
from service.ingress.desk import Desk, account, put_account
from service.ingress.endpoint import Verbs
from service.tasks.errors import InputError, demand_seed
from service.tasks.onepass import Accounted
from service.tasks.policy import Action, Episode, Moment, Policies
from service.tasks.results import Timing, Usage

_STEP = 16  # characters of text that are read as fast as a step of a history, beside its numbers


def policy(desk: Desk, model: Any) -> Verbs:
    task: Policies = model.task

    async def act(request: pb.ActRequest, call: Call) -> Message:
        seed = request.seed if request.HasField("seed") else None
        demand_seed(seed)
        greedy = not request.HasField("greedy") or request.greedy
        deadline = call.deadline
        submits = [
            partial(_act, task, each, None if greedy else _generator(seed, index), f"history[{index}]", deadline)
            for index, each in enumerate(request.history)
        ]
        answers = await desk.answers("history", submits, characters=_weight(request.history))
        response = pb.ActResponse(results=[_message(each.answer) for each in answers])
        return account(desk, call, response, answers)

    async def episode(requests: AsyncIterator[pb.EpisodeRequest], call: Call) -> AsyncGenerator[Message, None]:
        current: Episode | None = None
        try:
            async for request in requests:
                if request.WhichOneof("event") == "start":
                    if current is not None:
                        raise InputError("start came twice; an episode starts once", field="start")
                    current = await _start(desk, task, request.start)
                elif current is None:
                    raise InputError("the first message has to be a start", field="start")
                else:
                    yield await _step(desk, call, current, request.observation)
        finally:
            if current is not None:
                with suppress(ClosedError):
                    current.leave()

    return {"Act": act, "Episode": episode}


def _weight(histories: Sequence[pb.History]) -> int:
    """What reading them takes, in characters of text."""
    return sum(len(step.state) + _STEP for history in histories for step in history.steps)


def _act(
    task: Policies, history: pb.History, rng: np.random.Generator | None, field: str, deadline: float | None
) -> Pending[Accounted[Action]]:
    begun = time.monotonic()
    moments, target = [_moment(step) for step in history.steps], _target(history, f"{field}.target_return")
    try:
        future = task.act(moments, target, deadline=deadline)
    except InputError as error:
        raise _inside(error, field) from None
    prepared = time.monotonic() - begun

    def answer(found: list[Stepped]) -> Accounted[Action]:
        return Accounted(task.action(found[0], rng), Usage(), _timing(found[0], prepared))

    return Pending([future], answer)


async def _start(desk: Desk, task: Policies, start: pb.Start) -> Episode:
    greedy = not start.HasField("greedy") or start.greedy
    begin = partial(
        task.begin,
        _target(start, "start.target_return"),
        greedy=greedy,
        seed=start.seed if start.HasField("seed") else None,
    )
    current = await (await desk.prepared(begin, 0))
    try:
        await _replay(current, start)
    except BaseException:
        current.leave()
        raise
    return current


async def _replay(current: Episode, start: pb.Start) -> None:
    """An episode that was interrupted elsewhere: its steps again, with what was done then."""
    reward = None
    for index, step in enumerate(start.history):
        field = f"start.history[{index}]"
        if not step.HasField("action"):
            raise InputError(f"{field}.action is missing; every step of a history has one", field=f"{field}.action")
        try:
            current.answer(await _stepped(current, step.state, reward, None))
            current.did(_choice(step.action))
        except InputError as error:
            raise _inside(error, field) from None
        reward = step.reward if step.HasField("reward") else None


async def _step(desk: Desk, call: Call, current: Episode, seen: pb.Observation) -> Message:
    taken = _choice(seen.taken) if seen.HasField("taken") else None
    reward = seen.reward if seen.HasField("reward") else None
    found = await _stepped(current, seen.state, reward, taken)
    call.timing = _timing(found)
    return put_account(desk, call, pb.EpisodeResponse(action=_message(current.answer(found))))


async def _stepped(current: Episode, state: Any, reward: float | None, taken: Any) -> Stepped:
    return await Pending([current.submit(state, reward, taken=taken)], lambda answers: answers[0])


def _timing(found: Stepped, prepared: float = 0.0) -> Timing:
    return Timing(1e3 * found.queue_seconds, 1e3 * prepared, 1e3 * found.run_seconds)


def _target(message: pb.History | pb.Start, field: str) -> float:
    if not message.HasField("target_return"):
        raise InputError(f"{field} is missing; it is the sum of rewards to aim for", field=field)
    return message.target_return


def _moment(step: pb.Step) -> Moment:
    action = _choice(step.action) if step.HasField("action") else None
    return Moment(step.state, action, step.reward if step.HasField("reward") else None)


def _choice(action: pb.Action) -> Any:
    return action.discrete if action.WhichOneof("choice") == "discrete" else list(action.continuous.values)


def _message(action: Action) -> pb.Action:
    if action.continuous is not None:
        return pb.Action(continuous=pb.Vector(values=action.continuous))
    return pb.Action(discrete=action.discrete, scores=action.scores)


def _inside(error: InputError, field: str) -> InputError:
    """The same about a part of the request: its field with the way to it before it."""
    inner = error.field.removeprefix("history")
    path = ".".join(part for part in (field, f"steps{inner}" if inner.startswith("[") else inner) if part)
    return InputError(str(error).replace(error.field, path, 1), field=path, limit=error.limit)


def _generator(seed: int | None, index: int) -> np.random.Generator:
    return np.random.default_rng(None if seed is None else (seed, index))
