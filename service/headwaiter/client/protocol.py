"""What the sync and async clients share: method table, metadata, channel settings."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc

from headwaiter.client import errors
from headwaiter.client.call import Options
from headwaiter.client.errors import DeadlineExceeded, HeadwaiterError, InvalidInput, Unavailable
from headwaiter.client.retries import Attempts, RetryBudget, RetryPolicy
from headwaiter.protocol.methods import Method, find_method
from headwaiter.v1 import models_pb2

CATALOG = "catalog"  # the application that lists the models
DEFAULT_TIMEOUT = 60.0
_CATALOG_TIMEOUT_SECONDS = 2.0

CHANNEL_OPTIONS = (
    # The service enforces the message size (`limits.message_mb`).
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Reconnect within a retry's backoff; gRPC's default is one second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Detect hosts that lost their network during a call.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


def bind(channel: Any, name: str) -> Any:
    """Return the callable that sends requests of a method through `channel`. Raises InvalidInput if it is unknown."""
    method = require_method(name)
    create = getattr(channel, f"{_arity(method.client_streaming)}_{_arity(method.server_streaming)}")
    return create(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


def require_method(name: str) -> Method:
    method = find_method(name)
    if method is None:
        message = f"{name} is not a method of any installed task; names are as in the .proto files, such as Translate"
        raise InvalidInput(message, field="method")
    return method


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"


@dataclass(frozen=True, slots=True)
class RpcContext:
    """Address, model, request id and key of a call, the same for all its attempts."""

    address: str
    model: str
    request_id: str
    key: str | None

    def metadata(self) -> list[tuple[str, str]]:
        """Return the request metadata. Raises InvalidInput if a value is not printable ASCII."""
        for field, value in (("model", self.model), ("request_id", self.request_id), ("key", self.key or "")):
            if not (value.isascii() and value.isprintable()):
                raise InvalidInput(
                    f"{field} has characters that a header cannot contain; use printable ASCII", field=field
                )
        authorization = [("authorization", f"Bearer {self.key}")] if self.key else []
        return [("application", self.model), ("x-request-id", self.request_id), *authorization]

    def error(self, error: grpc.RpcError) -> HeadwaiterError:
        return errors.from_rpc(error, address=self.address, model=self.model, request_id=self.request_id)

    def list_models_arguments(self) -> dict[str, Any]:
        """Arguments of the call that lists the models; it completes the error about an unknown one."""
        metadata = replace(self, model=CATALOG).metadata()
        return {"request": models_pb2.ListModelsRequest(), "timeout": _CATALOG_TIMEOUT_SECONDS, "metadata": metadata}

    def deadline_exceeded(self) -> HeadwaiterError:
        message = f"{self.address} did not respond for model {self.model!r} before the deadline."
        return DeadlineExceeded(message, request_id=self.request_id)

    def stream_interrupted(self) -> HeadwaiterError:
        message = f"{self.address} closed the stream of model {self.model!r} before its end."
        return Unavailable(message, request_id=self.request_id)


class AnyCall(Protocol):
    """The attributes that Call, StreamCall and EpisodeCall share."""

    @property
    def model(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def options(self) -> Options: ...


class BaseClient:
    """Connection settings of a client."""

    def __init__(
        self,
        address: str,
        *,
        key: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: RetryPolicy | None = None,
        tls: bool | bytes = False,
    ) -> None:
        """Create a client; it connects on the first call.

        `address` is HOST:PORT, or a list such as `ipv4:10.0.0.1:9000,10.0.0.2:9000` of which the first reachable one
        is used. `key` is the API key. `timeout` is the time limit of a call in seconds, including retries; None means
        no limit. `tls=True` trusts the system's certificate authorities; bytes are PEM certificates to trust instead.
        """
        self.address = address
        self._key, self._timeout, self._tls = key, timeout, tls
        self._retries = retries or RetryPolicy()
        self._budget = RetryBudget(self._retries)

    def _channel_options(self) -> list[tuple[str, Any]]:
        first, *others = self.address.split(",")
        if not others:
            return [*CHANNEL_OPTIONS]
        # gRPC would send the whole list as the host name, which proxies reject.
        return [*CHANNEL_OPTIONS, ("grpc.default_authority", first.removeprefix("ipv4:").removeprefix("ipv6:"))]

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if not self._tls:
            return None
        return grpc.ssl_channel_credentials(self._tls if isinstance(self._tls, bytes) else None)

    def _rpc_context(self, call: AnyCall) -> RpcContext:
        request_id = call.options.get("request_id") or uuid.uuid4().hex
        return RpcContext(self.address, call.model, request_id, self._key)

    def _attempts(self, options: Options) -> Attempts:
        return Attempts(self._retries, self._budget, options.get("timeout", self._timeout))
