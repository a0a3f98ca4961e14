"""What both clients know of the other side: methods by name, metadata, a channel's settings."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headwaiter.v1 import (
    captioning_pb2,
    classification_pb2,
    detection_pb2,
    generation_pb2,
    models_pb2,
    policy_pb2,
    translation_pb2,
)
from service.client import errors
from service.client.call import Options
from service.client.errors import DeadlineExceeded, HeadwaiterError, InvalidInput, Unavailable
from service.client.retries import Attempts, Budget, Retries

TIMEOUT = 60.0

CHANNEL_OPTIONS = (
    # How much is too much is the service's to say: `limits.message_mb`.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A service that comes back is found again within a retry's wait; gRPC's own first wait is a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A machine that was cut off does not say so: while a call waits, its connection is asked whether it is alive.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


@dataclass(frozen=True, slots=True)
class Method:
    path: str
    kind: str
    request: type[Message]
    reply: type[Message]

    def on(self, channel: Any) -> Any:
        connect = getattr(channel, self.kind)
        return connect(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.reply.FromString,
        )


def _methods() -> dict[str, Method]:
    """By bare name: the protocol has no name twice."""
    found = {}
    stubs = (
        translation_pb2,
        captioning_pb2,
        classification_pb2,
        detection_pb2,
        policy_pb2,
        generation_pb2,
        models_pb2,
    )
    for stub in stubs:
        for service in stub.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                kind = f"{_arity(method.client_streaming)}_{_arity(method.server_streaming)}"
                messages = (GetMessageClass(each) for each in (method.input_type, method.output_type))
                found[method.name] = Method(f"/{service.full_name}/{method.name}", kind, *messages)
    return found


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"


METHODS = _methods()


@dataclass(frozen=True, slots=True)
class Envelope:
    """Whom a call is for and from whom, the same for all its attempts."""

    address: str
    model: str
    request_id: str
    key: str | None

    def metadata(self) -> list[tuple[str, str]]:
        for field, value in (("model", self.model), ("request_id", self.request_id), ("key", self.key or "")):
            if not (value.isascii() and value.isprintable()):
                raise InvalidInput(f"{field} has characters that cannot be sent in a header", field=field)
        authorization = [("authorization", f"Bearer {self.key}")] if self.key else []
        return [("application", self.model), ("x-request-id", self.request_id), *authorization]

    def error(self, error: grpc.RpcError) -> HeadwaiterError:
        return errors.from_rpc(error, address=self.address, model=self.model, request_id=self.request_id)

    def overdue(self) -> HeadwaiterError:
        sentence = f"{self.address} did not answer for {self.model!r} in time."
        return DeadlineExceeded(sentence, request_id=self.request_id)

    def broken_off(self) -> HeadwaiterError:
        sentence = f"{self.address} ended the stream of {self.model!r} too early."
        return Unavailable(sentence, request_id=self.request_id)


class Asked(Protocol):
    """What is needed of a call to send it."""

    @property
    def model(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def options(self) -> Options: ...


class Caller:
    """Where calls go and on what terms; the clients differ only in how they wait."""

    def __init__(
        self,
        address: str,
        *,
        key: str | None = None,
        timeout: float | None = TIMEOUT,
        retries: Retries | None = None,
        tls: bool | bytes = False,
    ) -> None:
        """`address` may be several, `ipv4:10.0.0.1:9000,10.0.0.2:9000`: the first that can be reached is used.
        `timeout` is a call's, all its attempts together; `tls` may be the certificates to trust."""
        self.address = address
        self._key, self._timeout, self._tls = key, timeout, tls
        self._retries = retries or Retries()
        self._budget = Budget(self._retries)

    def _channel_options(self) -> list[tuple[str, Any]]:
        first, *others = self.address.split(",")
        if not others:
            return [*CHANNEL_OPTIONS]
        # gRPC would send the whole list as the host's name, which proxies refuse.
        return [*CHANNEL_OPTIONS, ("grpc.default_authority", first.removeprefix("ipv4:").removeprefix("ipv6:"))]

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if not self._tls:
            return None
        return grpc.ssl_channel_credentials(self._tls if isinstance(self._tls, bytes) else None)

    def _envelope(self, call: Asked) -> Envelope:
        request_id = call.options.get("request_id") or uuid.uuid4().hex
        return Envelope(self.address, call.model, request_id, self._key)

    def _attempts(self, options: Options) -> Attempts:
        return Attempts(self._retries, self._budget, options.get("timeout", self._timeout))
