"""The client for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import grpc
import grpc.aio

from service.client import verbs
from service.client.call import Call, EpisodeCall, StreamCall
from service.client.errors import DeadlineExceeded, Unavailable
from service.client.methods import method
from service.client.requests import Numbers, Step, Taken
from service.client.results import Action
from service.client.streams import Pieces
from service.client.wire import METHODS, Caller, Envelope

_GOODBYE_SECONDS = 1.0
_HESITATION_SECONDS = (0.25, 1.0)

Given = ParamSpec("Given")
Result = TypeVar("Result")


class _Closing:
    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def asked(build: Callable[Given, Call[Result]]) -> Callable[Concatenate[AsyncClient, Given], Awaitable[Result]]:
    return method(build, "ask")


def streamed(build: Callable[Given, StreamCall]) -> Callable[Concatenate[AsyncClient, Given], AsyncTextStream]:
    return method(build, "stream")


def begun(build: Callable[Given, EpisodeCall]) -> Callable[Concatenate[AsyncClient, Given], AsyncEpisode]:
    return method(build, "begin")


class AsyncClient(Caller, _Closing):
    """Calls the models at an address, from one event loop.

    >>> async with AsyncClient("localhost:9000") as client:
    ...     (await client.translate("opus-mt-zh-en", "服务器崩溃了。")).text
    """

    translate = asked(verbs.translate)
    translate_stream = streamed(verbs.translate_stream)
    caption = asked(verbs.caption)
    caption_stream = streamed(verbs.caption_stream)
    classify = asked(verbs.classify)
    detect = asked(verbs.detect)
    act = asked(verbs.act)
    episode = begun(verbs.episode)
    generate = asked(verbs.generate)
    generate_stream = streamed(verbs.generate_stream)
    generate_images = asked(verbs.generate_images)
    models = asked(verbs.models)
    describe = asked(verbs.describe)

    @cached_property
    def _channel(self) -> grpc.aio.Channel:
        """Made when a loop runs: a channel belongs to the loop it was made in."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, self._channel_options())
        return grpc.aio.secure_channel(self.address, credentials, self._channel_options())

    async def ask(self, call: Call[Result]) -> Result:
        envelope, attempts = self._envelope(call), self._attempts(call.options)
        send, metadata = METHODS[call.method].on(self._channel), envelope.metadata()
        while True:
            try:
                reply = await send(call.request, timeout=attempts.turn(), metadata=metadata)
            except grpc.RpcError as error:
                await asyncio.sleep(attempts.wait_after(envelope.error(error)))
            else:
                attempts.succeeded()
                return call.parse(reply)

    def stream(self, call: StreamCall) -> AsyncTextStream:
        return AsyncTextStream(self.events(call))

    def begin(self, call: EpisodeCall) -> AsyncEpisode:
        return AsyncEpisode(self, call)

    async def close(self) -> None:
        await self._channel.close()

    async def events(self, call: StreamCall) -> AsyncGenerator[Any]:
        envelope, attempts = self._envelope(call), self._attempts(call.options)
        send, metadata = METHODS[call.method].on(self._channel), envelope.metadata()
        has_begun = has_ended = False
        while not has_ended:
            events = send(call.request, timeout=attempts.remaining(), metadata=metadata)
            try:
                async for event in events:
                    has_begun, has_ended = True, event.HasField("done")
                    yield event
                if not has_ended:
                    raise envelope.broken_off()
            except grpc.RpcError as error:
                await asyncio.sleep(attempts.wait_after(envelope.error(error), begun=has_begun))
            finally:
                events.cancel()
        attempts.succeeded()


class AsyncTextStream(Pieces, _Closing):
    """Iterate over it for pieces of text; leaving it early and closing it ends the call."""

    def __init__(self, events: AsyncGenerator[Any]) -> None:
        super().__init__()
        self._events = events

    async def __aiter__(self) -> AsyncIterator[str]:
        async with self:
            async for event in self._events:
                if piece := self._piece(event):
                    yield piece

    async def close(self) -> None:
        await self._events.aclose()


class AsyncEpisode(_Closing):
    """One run of an environment. Breaks are mended unseen, by replaying what happened to another replica."""

    def __init__(self, client: AsyncClient, call: EpisodeCall) -> None:
        self._client, self._options, self._script = client, call.options, call.script
        self._envelope = client._envelope(call)
        self._method = METHODS[call.method]
        self._line: _Line | None = None

    @property
    def history(self) -> list[Step]:
        """What was answered so far; `client.episode(…, history=…)` goes on from it."""
        return self._script.history()

    async def step(self, state: Numbers, reward: float | None = None, *, taken: Taken | None = None) -> Action:
        """`reward` is what the last action brought, `taken` what was done instead of it, where that was so."""
        self._script.observe(state, reward, taken)
        attempts = self._client._attempts(self._options)
        hesitations = iter(_HESITATION_SECONDS)
        hesitation = 0.0
        while True:
            try:
                reply = await self._exchange(attempts.turn(), hesitation)
            except grpc.RpcError as error:
                self._hang_up()
                hesitation = next(hesitations, 0.0) if _is_talked_over(error) else 0.0
                if not hesitation:
                    await asyncio.sleep(attempts.wait_after(self._envelope.error(error)))
            except (DeadlineExceeded, Unavailable) as error:
                self._hang_up()
                await asyncio.sleep(attempts.wait_after(error))
            except BaseException:
                self._hang_up()
                raise
            else:
                attempts.succeeded()
                return self._script.answered(reply)

    async def close(self) -> None:
        if self._line is not None:
            await self._line.say_goodbye()
        self._hang_up()

    async def _exchange(self, timeout: float | None, hesitation: float) -> Any:
        if self._line is None:
            self._line = _Line(self._method.on(self._client._channel), self._envelope)
            self._line.send(self._script.opening())
            if hesitation:
                await self._line.ended_within(hesitation)
        self._line.send(self._script.observation())
        return await self._line.receive(timeout)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.cut()
            self._line = None


class _Line:
    """A stream in both directions."""

    def __init__(self, connect: Callable[..., Any], envelope: Envelope) -> None:
        self._envelope = envelope
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._rpc = connect(self._requests(), metadata=envelope.metadata())
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
            raise self._envelope.overdue() from None
        except StopAsyncIteration:
            raise self._envelope.broken_off() from None

    async def say_goodbye(self) -> None:
        self._outbox.put_nowait(None)
        await self.ended_within(_GOODBYE_SECONDS)

    async def ended_within(self, seconds: float) -> None:
        await asyncio.wait([asyncio.ensure_future(self._rpc.code())], timeout=seconds)

    def cut(self) -> None:
        self._outbox.put_nowait(None)
        self._rpc.cancel()


def _is_talked_over(error: grpc.RpcError) -> bool:
    """Whether gRPC lost the other side's status: a write that fails puts one of its own in the place of it.

    That happens when a start is refused while the observation behind it is on its way. The next attempt waits between
    the two, and hears what was said.
    """
    return error.code() is grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core"
