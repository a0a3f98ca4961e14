"""Runs the methods of a task: parse, submit, wait, format. Adds model, usage and timing to every response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.description import describe
from headwaiter.api.drain import Drain
from headwaiter.api.endpoint import Handlers, StreamingHandler, UnaryHandler
from headwaiter.api.executor import RequestExecutor, attach_total_usage, attach_usage
from headwaiter.tasks.task import SessionMethod, Task, TaskMethod, TextStreamMethod, UnaryMethod
from headwaiter.v1 import common_pb2


def build_handlers(executor: RequestExecutor, task: Task[Any], drain: Drain) -> Handlers:
    """Handlers by method name: those of the task, and Describe."""
    description = describe(executor.identity.name, task)

    async def handle_describe(_: Message, __: RequestContext) -> Message:
        return description

    return {
        **{name: _handler(executor, method, drain) for name, method in task.methods().items()},
        "Describe": handle_describe,
    }


def _handler(executor: RequestExecutor, method: TaskMethod, drain: Drain) -> UnaryHandler | StreamingHandler:
    match method:
        case UnaryMethod():
            return _unary(executor, method)
        case TextStreamMethod():
            return _text_stream(executor, method)
        case SessionMethod():
            return _session(executor, method, drain)


def _unary(executor: RequestExecutor, method: UnaryMethod[Any, Any]) -> UnaryHandler:
    async def handle(request: Message, context: RequestContext) -> Message:
        results = await executor.execute(method.parse(request, context.deadline), context.deadline)
        if method.formats_off_loop:
            response = await asyncio.to_thread(method.format, results)
        else:
            response = method.format(results)
        return attach_total_usage(executor, context, response, results)

    return handle


def _text_stream(executor: RequestExecutor, method: TextStreamMethod[Any]) -> StreamingHandler:
    response: type[Any] = method.response

    async def handle(request: Message, context: RequestContext) -> AsyncGenerator[Message, None]:
        """Yield a `delta` event for each piece of text as it is generated, then one `done` event."""
        stream = await executor.begin_stream(method.parse(request, context.deadline))
        try:
            last_token_at = None
            async with aclosing(stream.__aiter__()) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    last_token_at = _record_token_latency(executor, context, last_token_at)
                    yield response(delta=delta)
            generated = stream.result()
        finally:
            stream.cancel()
        context.usage, context.timing = generated.usage, generated.timing
        done = common_pb2.Done(text=generated.text, score=generated.score, finish_reason=generated.finish_reason)
        yield response(done=attach_usage(executor, context, done))

    return handle


def _session(executor: RequestExecutor, method: SessionMethod, drain: Drain) -> StreamingHandler:
    async def handle(requests: AsyncIterator[Message], context: RequestContext) -> AsyncGenerator[Message, None]:
        session = method.open()
        try:
            async for request in drain.limit(requests):
                answer = await session.receive(request)
                if answer is not None:
                    response, context.timing = answer
                    yield attach_usage(executor, context, response)
        finally:
            session.close()

    return handle


def _record_token_latency(executor: RequestExecutor, context: RequestContext, last_token_at: float | None) -> float:
    now = time.monotonic()
    if last_token_at is None:
        executor.token_latency.record_time_to_first_token(context.method, now - context.started_at)
    else:
        executor.token_latency.record_inter_token_latency(context.method, now - last_token_at)
    return now
