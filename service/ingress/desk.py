"""Between the event loop and the engine: work that takes long is prepared elsewhere, and what would wait too long is
refused before it costs anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from headwaiter.v1.common_pb2 import Model, Timing, Usage
from service.engine.futures import Pending
from service.engine.jobs import QueueFullError
from service.engine.worker import Engine
from service.ingress.calls import Call
from service.tasks import results
from service.tasks.errors import InputError

Answer = TypeVar("Answer")
Made = TypeVar("Made")
MOST_INPUTS = 256
_LONGEST_UNKNOWN = 1024  # jobs in a line of unknown pace
_THREADS = 2
_NEWS = 0.1  # how much the latest counts
_LIGHT = 1000  # characters: so much is prepared faster than a thread is woken


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class TokenTimes(Protocol):
    def first_token(self, method: str, seconds: float) -> None: ...

    def between_tokens(self, method: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Who:
    name: str
    version: str

    def message(self) -> Model:
        return Model(name=self.name, version=self.version)


class Desk:
    def __init__(self, who: Who, engine: Engine[Any], limits: dict[str, int], times: TokenTimes) -> None:
        self.who, self.engine, self.limits, self.times = who, engine, limits, times
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prepare")
        self._preparing = 0
        self._usual_seconds = 0.0  # of preparing, lately

    async def answers(
        self, field: str, submits: Sequence[Callable[[], Pending[Answer]]], *, characters: int | None
    ) -> list[Answer]:
        """All of them, in order. When one is refused or cancelled, all are. `characters` None is heavy work."""
        if not submits:
            raise InputError(f"{field} is empty; it needs at least one", field=field, limit=1)
        if len(submits) > MOST_INPUTS:
            sentence = f"{field} has {len(submits):,} inputs; the limit is {MOST_INPUTS:,}"
            raise InputError(sentence, field=field, limit=MOST_INPUTS)
        pending = await self.prepared(partial(_submit_all, submits), characters)
        try:
            return [await each for each in pending.parts]
        except BaseException:
            pending.cancel()
            raise

    async def prepared(self, make: Callable[[], Made], characters: int | None) -> Made:
        """What `make` gives; nobody being there any more to take it, it is cancelled."""
        self.admit()
        if characters is not None and characters <= _LIGHT:
            return make()
        self._preparing += 1
        making = asyncio.get_running_loop().run_in_executor(self._pool, self._timed, make)
        making.add_done_callback(self._one_less)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_cancel_made)
            raise

    def _timed(self, make: Callable[[], Made]) -> Made:
        begun = time.monotonic()
        try:
            return make()
        finally:
            self._usual_seconds += _NEWS * (time.monotonic() - begun - self._usual_seconds)

    def _one_less(self, _: asyncio.Future[Any]) -> None:
        self._preparing -= 1

    def admit(self) -> None:
        if (refusal := self.refusal()) is not None:
            self.count_refused()
            raise refusal

    def count_refused(self) -> None:
        self.engine.line.meters.refused += 1

    def refusal(self) -> QueueFullError | None:
        """What to tell somebody who comes now and would wait longer than the model is allowed to let wait."""
        wait, most = self.engine.estimated_wait(), self.limits["wait_ms"] / 1e3
        if wait is None:  # how fast the line moves is not known yet; it soon will be
            wait = 0.0 if len(self.engine.line.jobs) < _LONGEST_UNKNOWN else most + 1
        wait += self._preparing * self._usual_seconds / _THREADS
        if wait <= most:
            return None
        sentence = f"{self.who.name} is busy: the wait would be {wait:,.1f} s; the limit is {most:,.1f} s"
        return QueueFullError(sentence, retry_after=min(wait - most, 30.0) + 0.1)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Several:
    def __init__(self, parts: list[Pending[Any]]) -> None:
        self.parts = parts

    def cancel(self) -> None:
        for part in self.parts:
            part.cancel()


def _submit_all(submits: Sequence[Callable[[], Pending[Any]]]) -> _Several:
    pending = _Several([])
    try:
        for submit in submits:
            pending.parts.append(submit())
    except BaseException:
        pending.cancel()
        raise
    return pending


def _cancel_made(making: asyncio.Future[Any]) -> None:
    if not making.cancelled() and making.exception() is None:
        made: Cancellable = making.result()
        made.cancel()


def account(desk: Desk, call: Call, response: Message, answers: Sequence[Any]) -> Any:
    """Writes who answered and what it took into the response, and into the call for metrics and logs. Tokens add up;
    of times that ran side by side, the longest counts."""
    call.usage = results.Usage(
        sum(each.usage.input_tokens for each in answers),
        sum(each.usage.output_tokens for each in answers),
        sum(each.usage.images for each in answers),
    )
    call.timing = results.Timing(
        max(each.timing.queue_ms for each in answers),
        sum(each.timing.prepare_ms for each in answers),
        max(each.timing.run_ms for each in answers),
    )
    return put_account(desk, call, response)


def put_account(desk: Desk, call: Call, response: Any) -> Any:
    usage, timing = call.usage, call.timing
    response.model.CopyFrom(desk.who.message())
    response.usage.CopyFrom(
        Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, images=usage.images)
    )
    response.timing.CopyFrom(Timing(queue_ms=timing.queue_ms, prepare_ms=timing.prepare_ms, run_ms=timing.run_ms))
    return response
