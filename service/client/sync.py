"""The client for threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import grpc

from service.client import verbs
from service.client.call import Call, EpisodeCall, StreamCall
from service.client.errors import DeadlineExceeded, Unavailable
from service.client.methods import method
from service.client.requests import Numbers, Step, Taken
from service.client.results import Action
from service.client.streams import Pieces
from service.client.wire import METHODS, Caller, Envelope

_GOODBYE_SECONDS = 1.0

Given = ParamSpec("Given")
Result = TypeVar("Result")


class _Closing:
    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def asked(build: Callable[Given, Call[Result]]) -> Callable[Concatenate[Client, Given], Result]:
    return method(build, "ask")


def streamed(build: Callable[Given, StreamCall]) -> Callable[Concatenate[Client, Given], TextStream]:
    return method(build, "stream")


def begun(build: Callable[Given, EpisodeCall]) -> Callable[Concatenate[Client, Given], Episode]:
    return method(build, "begin")


class Client(Caller, _Closing):
    """Calls the models at an address. Threads may share one.

    >>> with Client("localhost:9000") as client:
    ...     client.translate("opus-mt-zh-en", "服务器崩溃了。").text
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
    def _channel(self) -> grpc.Channel:
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(self.address, self._channel_options())
        return grpc.secure_channel(self.address, credentials, self._channel_options())

    def ask(self, call: Call[Result]) -> Result:
        envelope, attempts = self._envelope(call), self._attempts(call.options)
        send, metadata = METHODS[call.method].on(self._channel), envelope.metadata()
        while True:
            try:
                reply = send(call.request, timeout=attempts.turn(), metadata=metadata)
            except grpc.RpcError as error:
                time.sleep(attempts.wait_after(envelope.error(error)))
            else:
                attempts.succeeded()
                return call.parse(reply)

    def stream(self, call: StreamCall) -> TextStream:
        return TextStream(self.events(call))

    def begin(self, call: EpisodeCall) -> Episode:
        return Episode(self, call)

    def close(self) -> None:
        self._channel.close()

    def events(self, call: StreamCall) -> Generator[Any]:
        envelope, attempts = self._envelope(call), self._attempts(call.options)
        send, metadata = METHODS[call.method].on(self._channel), envelope.metadata()
        has_begun = has_ended = False
        while not has_ended:
            events = send(call.request, timeout=attempts.remaining(), metadata=metadata)
            try:
                for event in events:
                    has_begun, has_ended = True, event.HasField("done")
                    yield event
                if not has_ended:
                    raise envelope.broken_off()
            except grpc.RpcError as error:
                time.sleep(attempts.wait_after(envelope.error(error), begun=has_begun))
            finally:
                events.cancel()
        attempts.succeeded()


class TextStream(Pieces, _Closing):
    """Iterate over it for pieces of text; leaving it early ends the call."""

    def __init__(self, events: Generator[Any]) -> None:
        super().__init__()
        self._events = events

    def __iter__(self) -> Iterator[str]:
        with self:
            for event in self._events:
                if piece := self._piece(event):
                    yield piece

    def close(self) -> None:
        self._events.close()


class Episode(_Closing):
    """One run of an environment. Breaks are mended unseen, by replaying what happened to another replica."""

    def __init__(self, client: Client, call: EpisodeCall) -> None:
        self._client, self._options, self._script = client, call.options, call.script
        self._envelope = client._envelope(call)
        self._open = METHODS[call.method].on(client._channel)
        self._line: _Line | None = None

    @property
    def history(self) -> list[Step]:
        """What was answered so far; `client.episode(…, history=…)` goes on from it."""
        return self._script.history()

    def step(self, state: Numbers, reward: float | None = None, *, taken: Taken | None = None) -> Action:
        """`reward` is what the last action brought, `taken` what was done instead of it, where that was so."""
        self._script.observe(state, reward, taken)
        attempts = self._client._attempts(self._options)
        while True:
            try:
                reply = self._exchange(attempts.turn())
            except grpc.RpcError as error:
                self._hang_up()
                time.sleep(attempts.wait_after(self._envelope.error(error)))
            except (DeadlineExceeded, Unavailable) as error:
                self._hang_up()
                time.sleep(attempts.wait_after(error))
            except BaseException:
                self._hang_up()
                raise
            else:
                attempts.succeeded()
                return self._script.answered(reply)

    def close(self) -> None:
        if self._line is not None:
            self._line.say_goodbye()
        self._hang_up()

    def _exchange(self, timeout: float | None) -> Any:
        if self._line is None:
            self._line = _Line(self._open, self._envelope)
            self._line.send(self._script.opening())
        self._line.send(self._script.observation())
        return self._line.receive(timeout)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.cut()
            self._line = None


class _Line:
    """A stream in both directions. gRPC gives no way to wait for a reply for a limited time; a queue does."""

    def __init__(self, connect: Callable[..., Any], envelope: Envelope) -> None:
        self._envelope = envelope
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._rpc = connect(iter(self._outbox.get, None), metadata=envelope.metadata())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, request: Any) -> None:
        self._outbox.put(request)

    def receive(self, timeout: float | None) -> Any:
        try:
            reply = self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise self._envelope.overdue() from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def say_goodbye(self) -> None:
        self._outbox.put(None)
        self._reader.join(_GOODBYE_SECONDS)

    def cut(self) -> None:
        self._outbox.put(None)
        self._rpc.cancel()

    def _read(self) -> None:
        try:
            for reply in self._rpc:
                self._inbox.put(reply)
            self._inbox.put(self._envelope.broken_off())
        except grpc.RpcError as error:
            self._inbox.put(error)
