"""The synchronous client."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import grpc

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

Params = ParamSpec("Params")
Result = TypeVar("Result")


class _Closeable:
    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def unary_method(build: Callable[Params, Call[Result]]) -> Callable[Concatenate[Client, Params], Result]:
    return client_method(build, "execute")


def stream_method(build: Callable[Params, StreamCall]) -> Callable[Concatenate[Client, Params], TextStream]:
    return client_method(build, "stream")


def episode_method(build: Callable[Params, EpisodeCall]) -> Callable[Concatenate[Client, Params], Episode]:
    return client_method(build, "begin")


class Client(BaseClient, _Closeable):
    """Calls the models of a service. Thread-safe.

    >>> with Client("localhost:9000") as client:
    ...     client.translate("opus-mt-zh-en", "服务器崩溃了。").text
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
    def _channel(self) -> grpc.Channel:
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(self.address, self._channel_options())
        return grpc.secure_channel(self.address, credentials, self._channel_options())

    def execute(self, call: Call[Result]) -> Result:
        """Send a unary call, with retries, and return its parsed result."""
        rpc_context, attempts = self._rpc_context(call), self._attempts(call.options)
        send, metadata = bind(self._channel, call.method), rpc_context.metadata()
        while True:
            try:
                reply = send(call.request, timeout=attempts.next_timeout(), metadata=metadata)
            except grpc.RpcError as error:
                time.sleep(attempts.backoff_after(self.failure(rpc_context, error)))
            else:
                attempts.record_success()
                return call.parse(reply)

    def stream(self, call: StreamCall) -> TextStream:
        return TextStream(self.events(call))

    def begin(self, call: EpisodeCall) -> Episode:
        return Episode(self, call)

    def close(self) -> None:
        self._channel.close()

    def failure(self, rpc_context: RpcContext, error: grpc.RpcError) -> HeadwaiterError:
        """Convert the error of a call. If the model is unknown, ask once which models exist."""
        failure = rpc_context.error(error)
        if not isinstance(failure, NotFound):
            return failure
        try:
            reply = bind(self._channel, "ListModels")(**rpc_context.list_models_arguments())
        except grpc.RpcError as catalog_error:
            is_absent = is_catalog_absent(catalog_error)
            return check_not_found(failure, rpc_context.model, None) if is_absent else failure
        return check_not_found(failure, rpc_context.model, [model.name for model in reply.models])

    def events(self, call: StreamCall) -> Generator[Any]:
        """Yield the raw events of a streaming call. It is retried only before the first event."""
        rpc_context, attempts = self._rpc_context(call), self._attempts(call.options)
        send, metadata = bind(self._channel, call.method), rpc_context.metadata()
        has_started = has_ended = False
        while not has_ended:
            events = send(call.request, timeout=attempts.remaining(), metadata=metadata)
            try:
                for event in events:
                    has_started, has_ended = True, event.HasField("done")
                    yield event
                if not has_ended:
                    raise rpc_context.stream_interrupted()
            except grpc.RpcError as error:
                time.sleep(attempts.backoff_after(self.failure(rpc_context, error), has_started=has_started))
            finally:
                events.cancel()
        attempts.record_success()


class TextStream(TextStreamBase, _Closeable):
    """Iterate over it to receive chunks of text; leaving the loop early cancels the call."""

    def __init__(self, events: Generator[Any]) -> None:
        super().__init__()
        self._events = events

    def __iter__(self) -> Iterator[str]:
        with self:
            for event in self._events:
                if chunk := self._handle_event(event):
                    yield chunk

    def close(self) -> None:
        self._events.close()


class Episode(_Closeable):
    """One episode of an environment. If its replica is lost, the history is replayed on another one."""

    def __init__(self, client: Client, call: EpisodeCall) -> None:
        self._client, self._options, self._replay = client, call.options, call.replay
        self._rpc_context = client._rpc_context(call)
        self._open_stream = bind(client._channel, call.method)
        self._stream: _EpisodeStream | None = None

    @property
    def history(self) -> list[Step]:
        """The completed steps; `client.episode(…, history=…)` continues from them."""
        return self._replay.history()

    def step(self, state: Numbers, reward: float | None = None, *, taken: ActionLike | None = None) -> Action:
        """Return the next action.

        `reward` is the reward of the last action; `taken` is the action that was executed, if it was another one.
        """
        self._replay.record_observation(state, reward, taken)
        attempts = self._client._attempts(self._options)
        while True:
            try:
                reply = self._exchange(attempts.next_timeout())
            except grpc.RpcError as error:
                self._disconnect()
                time.sleep(attempts.backoff_after(self._client.failure(self._rpc_context, error)))
            except (DeadlineExceeded, Unavailable) as error:
                self._disconnect()
                time.sleep(attempts.backoff_after(error))
            except BaseException:
                self._disconnect()
                raise
            else:
                attempts.record_success()
                return self._replay.record_response(reply)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close_gracefully()
        self._disconnect()

    def _exchange(self, timeout: float | None) -> Any:
        if self._stream is None:
            self._stream = _EpisodeStream(self._open_stream, self._rpc_context)
            self._stream.send(self._replay.start_request())
        self._stream.send(self._replay.observation())
        return self._stream.receive(timeout)

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


class _EpisodeStream:
    """The bidirectional stream of an episode.

    A thread moves replies into a queue, because gRPC cannot wait for a reply with a timeout.
    """

    def __init__(self, open_stream: Callable[..., Any], rpc_context: RpcContext) -> None:
        self._rpc_context = rpc_context
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._rpc = open_stream(iter(self._outbox.get, None), metadata=rpc_context.metadata())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, request: Any) -> None:
        self._outbox.put(request)

    def receive(self, timeout: float | None) -> Any:
        try:
            reply = self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise self._rpc_context.deadline_exceeded() from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close_gracefully(self) -> None:
        self._outbox.put(None)
        self._reader.join(_CLOSE_TIMEOUT_SECONDS)

    def cancel(self) -> None:
        self._outbox.put(None)
        self._rpc.cancel()

    def _read(self) -> None:
        try:
            for reply in self._rpc:
                self._inbox.put(reply)
            self._inbox.put(self._rpc_context.stream_interrupted())
        except grpc.RpcError as error:
            self._inbox.put(error)
