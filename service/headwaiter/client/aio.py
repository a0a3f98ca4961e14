"""The asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import grpc
import grpc.aio

from headwaiter.client import operations
from headwaiter.client.call import Call, EpisodeCall, StreamCall
from headwaiter.client.errors import (
    DeadlineExceeded,
    HeadwaiterError,
    NotFound,
    Unavailable,
    check_not_found,
    is_catalog_absent,
)
from headwaiter.client.methods import client_method
from headwaiter.client.protocol import BaseClient, RpcContext, bind
from headwaiter.client.requests import ActionLike, Numbers, Step
from headwaiter.client.results import Action
from headwaiter.client.streams import TextStreamBase

_CLOSE_TIMEOUT_SECONDS = 1.0
_STATUS_WAIT_SECONDS = (0.25, 1.0)  # see _is_status_lost

Params = ParamSpec("Params")
Result = TypeVar("Result")


class _Closeable:
    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def unary_method(
    build: Callable[Params, Call[Result]],
) -> Callable[Concatenate[AsyncClient, Params], Awaitable[Result]]:
    return client_method(build, "execute")


def stream_method(build: Callable[Params, StreamCall]) -> Callable[Concatenate[AsyncClient, Params], AsyncTextStream]:
    return client_method(build, "stream")


def episode_method(build: Callable[Params, EpisodeCall]) -> Callable[Concatenate[AsyncClient, Params], AsyncEpisode]:
    return client_method(build, "begin")


class AsyncClient(BaseClient, _Closeable):
    """Calls the models of a service. Use it from one event loop only.

    >>> async with AsyncClient("localhost:9000") as client:
    ...     (await client.translate("opus-mt-zh-en", "服务器崩溃了。")).text
    """

    translate = unary_method(operations.translate)
    translate_stream = stream_method(operations.translate_stream)
    caption = unary_method(operations.caption)
    caption_stream = stream_method(operations.caption_stream)
    classify = unary_method(operations.classify)
    detect = unary_method(operations.detect)
    act = unary_method(operations.act)
    episode = episode_method(operations.episode)
    generate = unary_method(operations.generate)
    generate_stream = stream_method(operations.generate_stream)
    generate_images = unary_method(operations.generate_images)
    models = unary_method(operations.models)
    describe = unary_method(operations.describe)
    call = unary_method(operations.call)

    @cached_property
    def _channel(self) -> grpc.aio.Channel:
        """Created on first use, because a channel belongs to the running event loop."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, self._channel_options())
        return grpc.aio.secure_channel(self.address, credentials, self._channel_options())

    async def execute(self, call: Call[Result]) -> Result:
        """Send a unary call, with retries, and return its parsed result."""
        rpc_context, attempts = self._rpc_context(call), self._attempts(call.options)
        send, metadata = bind(self._channel, call.method), rpc_context.metadata()
        while True:
            try:
                reply = await send(call.request, timeout=attempts.next_timeout(), metadata=metadata)
            except grpc.RpcError as error:
                await asyncio.sleep(attempts.backoff_after(await self.failure(rpc_context, error)))
            else:
                attempts.record_success()
                return call.parse(reply)

    def stream(self, call: StreamCall) -> AsyncTextStream:
        return AsyncTextStream(self.events(call))

    def begin(self, call: EpisodeCall) -> AsyncEpisode:
        return AsyncEpisode(self, call)

    async def close(self) -> None:
        await self._channel.close()

    async def failure(self, rpc_context: RpcContext, error: grpc.RpcError) -> HeadwaiterError:
        """Convert the error of a call. If the model is unknown, ask once which models exist."""
        failure = rpc_context.error(error)
        if not isinstance(failure, NotFound):
            return failure
        try:
            reply = await bind(self._channel, "ListModels")(**rpc_context.list_models_arguments())
        except grpc.RpcError as catalog_error:
            is_absent = is_catalog_absent(catalog_error)
            return check_not_found(failure, rpc_context.model, None) if is_absent else failure
        return check_not_found(failure, rpc_context.model, [model.name for model in reply.models])

    async def events(self, call: StreamCall) -> AsyncGenerator[Any]:
        """Yield the raw events of a streaming call. It is retried only before the first event."""
        rpc_context, attempts = self._rpc_context(call), self._attempts(call.options)
        send, metadata = bind(self._channel, call.method), rpc_context.metadata()
        has_started = has_ended = False
        while not has_ended:
            events = send(call.request, timeout=attempts.remaining(), metadata=metadata)
            try:
                async for event in events:
                    has_started, has_ended = True, event.HasField("done")
                    yield event
                if not has_ended:
                    raise rpc_context.stream_interrupted()
            except grpc.RpcError as error:
                failure = await self.failure(rpc_context, error)
                await asyncio.sleep(attempts.backoff_after(failure, has_started=has_started))
            finally:
                events.cancel()
        attempts.record_success()


class AsyncTextStream(TextStreamBase, _Closeable):
    """Iterate over it to receive chunks of text; closing it before the end cancels the call."""

    def __init__(self, events: AsyncGenerator[Any]) -> None:
        super().__init__()
        self._events = events

    async def __aiter__(self) -> AsyncIterator[str]:
        async with self:
            async for event in self._events:
                if chunk := self._handle_event(event):
                    yield chunk

    async def close(self) -> None:
        await self._events.aclose()


class AsyncEpisode(_Closeable):
    """One episode of an environment. If its replica is lost, the history is replayed on another one."""

    def __init__(self, client: AsyncClient, call: EpisodeCall) -> None:
        self._client, self._options, self._replay = client, call.options, call.replay
        self._rpc_context = client._rpc_context(call)
        self._method = call.method
        self._stream: _EpisodeStream | None = None

    @property
    def history(self) -> list[Step]:
        """The completed steps; `client.episode(…, history=…)` continues from them."""
        return self._replay.history()

    async def step(self, state: Numbers, reward: float | None = None, *, taken: ActionLike | None = None) -> Action:
        """Return the next action.

        `reward` is the reward of the last action; `taken` is the action that was executed, if it was another one.
        """
        self._replay.record_observation(state, reward, taken)
        attempts = self._client._attempts(self._options)
        status_waits = iter(_STATUS_WAIT_SECONDS)
        status_wait = 0.0
        while True:
            try:
                reply = await self._exchange(attempts.next_timeout(), status_wait)
            except grpc.RpcError as error:
                self._disconnect()
                status_wait = next(status_waits, 0.0) if _is_status_lost(error) else 0.0
                if not status_wait:
                    failure = await self._client.failure(self._rpc_context, error)
                    await asyncio.sleep(attempts.backoff_after(failure))
            except (DeadlineExceeded, Unavailable) as error:
                self._disconnect()
                await asyncio.sleep(attempts.backoff_after(error))
            except BaseException:
                self._disconnect()
                raise
            else:
                attempts.record_success()
                return self._replay.record_response(reply)

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close_gracefully()
        self._disconnect()

    async def _exchange(self, timeout: float | None, status_wait: float) -> Any:
        if self._stream is None:
            self._stream = _EpisodeStream(bind(self._client._channel, self._method), self._rpc_context)
            self._stream.send(self._replay.start_request())
            if status_wait:
                await self._stream.wait_until_ended(status_wait)
        self._stream.send(self._replay.observation())
        return await self._stream.receive(timeout)

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


class _EpisodeStream:
    """The bidirectional stream of an episode."""

    def __init__(self, open_stream: Callable[..., Any], rpc_context: RpcContext) -> None:
        self._rpc_context = rpc_context
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._rpc = open_stream(self._requests(), metadata=rpc_context.metadata())
        self._replies = aiter(self._rpc)

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self._outbox.get()) is not None:
            yield request

    def send(self, request: Any) -> None:
        self._outbox.put_nowait(request)

    async def receive(self, timeout: float | None) -> Any:
        try:
            return await asyncio.wait_for(anext(self._replies), timeout)
        except TimeoutError:
            raise self._rpc_context.deadline_exceeded() from None
        except StopAsyncIteration:
            raise self._rpc_context.stream_interrupted() from None

    async def close_gracefully(self) -> None:
        self._outbox.put_nowait(None)
        await self.wait_until_ended(_CLOSE_TIMEOUT_SECONDS)

    async def wait_until_ended(self, seconds: float) -> None:
        """Wait until the server has ended the stream, for at most `seconds`."""
        await asyncio.wait([asyncio.ensure_future(self._rpc.code())], timeout=seconds)

    def cancel(self) -> None:
        self._outbox.put_nowait(None)
        self._rpc.cancel()


def _is_status_lost(error: grpc.RpcError) -> bool:
    """Return whether gRPC replaced the server's status by its own because a write failed.

    That happens if the server rejects the start request while the first observation is being written. The next attempt
    waits between the two messages, so that the server's status can arrive.
    """
    return error.code() is grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core"
