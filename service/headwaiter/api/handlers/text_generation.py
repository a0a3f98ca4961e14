"""Shared by the handlers that generate text: decoding parameters, hypotheses and streams."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.executor import RequestExecutor, attach_usage
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.results import Hypothesis
from headwaiter.tasks.text_generation import GeneratedTextStream
from headwaiter.v1 import common_pb2


def parse_decoding(message: common_pb2.Decoding) -> DecodingOptions:
    """Only the fields that the request sets; the others stay None."""
    return DecodingOptions(**{field.name: value for field, value in message.ListFields()})


def hypothesis_messages(hypotheses: Iterable[Hypothesis]) -> list[common_pb2.Hypothesis]:
    return [
        common_pb2.Hypothesis(text=hypothesis.text, score=hypothesis.score, finish_reason=hypothesis.finish_reason)
        for hypothesis in hypotheses
    ]


async def stream_text(
    executor: RequestExecutor,
    context: RequestContext,
    response: type[Any],
    begin: Callable[[], GeneratedTextStream],
    *,
    cost: int | None,
) -> AsyncGenerator[Message, None]:
    """Yield a `delta` event for each piece of text as it is generated, then one `done` event."""
    stream = await executor.run_preprocessing(begin, cost)
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


def _record_token_latency(executor: RequestExecutor, context: RequestContext, last_token_at: float | None) -> float:
    now = time.monotonic()
    if last_token_at is None:
        executor.token_latency.record_time_to_first_token(context.method, now - context.started_at)
    else:
        executor.token_latency.record_inter_token_latency(context.method, now - last_token_at)
    return now
