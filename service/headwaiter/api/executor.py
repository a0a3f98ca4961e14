"""Runs preprocessing off the event loop and submits requests to the engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.engine.admission import PreprocessingBacklog
from headwaiter.engine.futures import Pending
from headwaiter.engine.jobs import DeadlineError, job_group
from headwaiter.tasks import results
from headwaiter.tasks.task import Result, StreamSubmission, Submission
from headwaiter.tasks.text_generation import GeneratedTextStream
from headwaiter.v1.common_pb2 import Model, Timing, Usage

ResultT = TypeVar("ResultT", bound=Result)
Prepared = TypeVar("Prepared")
_PREPROCESSING_THREADS = 2
_INLINE_MAX_CHARS = 1000  # preprocessing this much text is faster than handing it to a thread


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class TokenLatencyRecorder(Protocol):
    def record_time_to_first_token(self, method: str, seconds: float) -> None: ...

    def record_inter_token_latency(self, method: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    name: str
    version: str

    def message(self) -> Model:
        return Model(name=self.name, version=self.version)


class RequestExecutor:
    """Submits the requests that admission control has accepted."""

    def __init__(self, identity: ModelIdentity, token_latency: TokenLatencyRecorder) -> None:
        self.identity, self.token_latency = identity, token_latency
        self.preprocessing = PreprocessingBacklog(_PREPROCESSING_THREADS)
        self._pool = ThreadPoolExecutor(_PREPROCESSING_THREADS, thread_name_prefix="prepare")

    async def execute(self, submission: Submission[ResultT], deadline: float | None = None) -> list[ResultT]:
        """Submit all inputs of a request and return their results in order. If one fails, cancel the others.

        Between two inputs, preprocessing ends if the request is cancelled or its deadline has passed.
        """
        cancelled = threading.Event()
        submit_all = partial(_submit_all, submission.inputs, cancelled, deadline)
        try:
            group = await self.run_preprocessing(submit_all, submission.cost)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        try:
            return [await pending for pending in group.members]
        except BaseException:
            group.cancel()
            raise

    async def begin_stream(self, submission: StreamSubmission) -> GeneratedTextStream:
        return await self.run_preprocessing(partial(_begin_stream, submission), submission.cost)

    async def run_preprocessing(self, fn: Callable[[], Prepared], cost: int | None) -> Prepared:
        """Run `fn` in the thread pool, or inline if `cost` is small. If the caller is cancelled, cancel the result of
        `fn` once it exists."""
        if cost is not None and cost <= _INLINE_MAX_CHARS:
            return fn()
        self.preprocessing.begin()
        timer = _Timer(fn)
        future = asyncio.get_running_loop().run_in_executor(self._pool, timer)
        future.add_done_callback(lambda _: self.preprocessing.end(timer.seconds))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_cancel_result)
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Timer(Generic[Prepared]):
    """Calls a function and measures how long it takes."""

    def __init__(self, fn: Callable[[], Prepared]) -> None:
        self._fn = fn
        self.seconds: float | None = None

    def __call__(self) -> Prepared:
        started_at = time.monotonic()
        try:
            return self._fn()
        finally:
            self.seconds = time.monotonic() - started_at


class _RequestCancelledError(Exception):
    """Ends the preprocessing of a request that nobody waits for."""


class _PendingGroup(Generic[ResultT]):
    def __init__(self, members: list[Pending[ResultT]]) -> None:
        self.members = members

    def cancel(self) -> None:
        for pending in self.members:
            pending.cancel()


def _submit_all(
    inputs: Sequence[Callable[[], Pending[ResultT]]], cancelled: threading.Event, deadline: float | None
) -> _PendingGroup[ResultT]:
    group: _PendingGroup[ResultT] = _PendingGroup([])
    try:
        with job_group(len(inputs)):
            for submit in inputs:
                if cancelled.is_set():
                    raise _RequestCancelledError
                if deadline is not None and time.monotonic() > deadline:
                    raise DeadlineError("the deadline passed during preprocessing")
                group.members.append(submit())
    except BaseException:
        group.cancel()
        raise
    return group


def _begin_stream(submission: StreamSubmission) -> GeneratedTextStream:
    with job_group(1):
        return submission.begin()


def _cancel_result(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        result: Cancellable = future.result()
        result.cancel()


def attach_total_usage(
    executor: RequestExecutor, context: RequestContext, response: Message, outputs: Sequence[Result]
) -> Any:
    """Attach the usage and timing of all inputs to the response and to the request context.

    Usage and preparation times are summed. Queue and run times overlap, so their maximum counts.
    """
    context.usage = results.Usage(
        sum(output.usage.input_tokens for output in outputs),
        sum(output.usage.output_tokens for output in outputs),
        sum(output.usage.images for output in outputs),
    )
    context.timing = results.Timing(
        max(output.timing.queue_ms for output in outputs),
        sum(output.timing.prepare_ms for output in outputs),
        max(output.timing.run_ms for output in outputs),
    )
    return attach_usage(executor, context, response)


def attach_usage(executor: RequestExecutor, context: RequestContext, response: Any) -> Any:
    """Write model identity, usage and timing of the request context into the response."""
    usage, timing = context.usage, context.timing
    response.model.CopyFrom(executor.identity.message())
    response.usage.CopyFrom(
        Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, images=usage.images)
    )
    response.timing.CopyFrom(Timing(queue_ms=timing.queue_ms, prepare_ms=timing.prepare_ms, run_ms=timing.run_ms))
    return response
