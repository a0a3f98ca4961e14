"""Exceptions of the clients.

An exception is built from the status code of the failed call and from its trailers `x-request-id` and
`grpc-status-details-bin`, a google.rpc.Status with
- google.rpc.BadRequest: `field` of the first field violation, and its `description` as the message;
- google.rpc.ErrorInfo of the domain `headwaiter`: `limit` in its metadata;
- google.rpc.RetryInfo: the delay before a retry.
An error without such an ErrorInfo came from the network or a proxy and gets a message written here.
"""
# ruff: noqa: N818 -- exceptions are named after the condition

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"
_REQUEST_ID = "x-request-id"
_DOMAIN = "headwaiter"


class HeadwaiterError(Exception):
    """Base class of all errors of a call.

    `code` is the name of the gRPC status, `retry_after` is in seconds.
    """

    code = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        limit: float | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.field = field
        self.limit = limit
        self.request_id = request_id
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the attributes when the error is pickled."""
        attributes = {name: getattr(self, name) for name in ("code", "field", "limit", "request_id", "retry_after")}
        return partial(type(self), **attributes), self.args


class InvalidInput(HeadwaiterError, ValueError):
    """The request is invalid; `field` names the field and `limit` the limit that it violates, if any."""

    code = "INVALID_ARGUMENT"


class Unauthenticated(HeadwaiterError):
    """The API key is missing or invalid."""

    code = "UNAUTHENTICATED"


class NotFound(HeadwaiterError, LookupError):
    """The service has no model of that name."""

    code = "NOT_FOUND"


class WrongTask(HeadwaiterError):
    """The model's task does not support the method."""

    code = "UNIMPLEMENTED"


class Overloaded(HeadwaiterError):
    """The queue is full; `retry_after` is the suggested delay in seconds, if the service gave one."""

    code = "RESOURCE_EXHAUSTED"


class EpisodeLost(HeadwaiterError):
    """The replica evicted the episode. The next step restarts it by replaying its history."""

    code = "ABORTED"


class DeadlineExceeded(HeadwaiterError, TimeoutError):
    """The call did not complete before its deadline."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(HeadwaiterError):
    """The call was cancelled."""

    code = "CANCELLED"


class WrongAddress(HeadwaiterError, ConnectionError):
    """The address speaks HTTP instead of gRPC. Such calls are not retried."""

    code = "UNAVAILABLE"


class Unavailable(HeadwaiterError, ConnectionError):
    """The service is unreachable, starting or draining."""

    code = "UNAVAILABLE"


class InternalError(HeadwaiterError):
    """The service failed unexpectedly; its logs contain the `request_id`."""

    code = "INTERNAL"


_ERROR_TYPES: dict[str, type[HeadwaiterError]] = {
    error_type.code: error_type
    for error_type in (
        InvalidInput,
        Unauthenticated,
        NotFound,
        WrongTask,
        Overloaded,
        EpisodeLost,
        DeadlineExceeded,
        Cancelled,
        Unavailable,
        InternalError,
    )
}

_PROXY_ERROR = re.compile(r"http2 header with status: 50\d")
"""How gRPC reports an HTTP error of a proxy; HAProxy responds with 500 if its replica closes the connection."""
_HTTP_ANSWER = re.compile(r"http2 header with status: 40[045]|http1\.x server")
"""How gRPC reports a server that answers in HTTP: HAProxy in HTTP/2, uvicorn in HTTP/1.1."""
_HTTP_ANSWER_MESSAGE = "{address} speaks HTTP, not gRPC; the gRPC port is 9000 by default."
_TOO_LARGE = "larger than max"
"""How gRPC itself rejects a message, which happens at twice the service's limit."""
_NETWORK_ERROR_MESSAGES = {
    "INVALID_ARGUMENT": "The request is too large for {address}: {details}",
    "NOT_FOUND": "{address} serves no model {model!r}.",
    "DEADLINE_EXCEEDED": "{address} did not respond for model {model!r} before the deadline.",
    "UNAVAILABLE": "{address} is unavailable: {details}",
}


def from_rpc(error: grpc.RpcError, *, address: str, model: str, request_id: str) -> HeadwaiterError:
    """Convert a gRPC error of a call to `model` at `address`."""
    trailers = {key: value for key, value in error.trailing_metadata() or () if key in (_DETAILS, _REQUEST_ID)}
    status = status_pb2.Status.FromString(trailers.get(_DETAILS, b""))
    attributes = _parse_details(status.details)
    code, details = error.code().name, error.details() or ""
    from_service = attributes.pop("from_service")
    if not from_service and _HTTP_ANSWER.search(details):
        return WrongAddress(_HTTP_ANSWER_MESSAGE.format(address=address), code=code, request_id=request_id)
    if code == "UNKNOWN" and not from_service and _PROXY_ERROR.search(details):
        code = "UNAVAILABLE"
    if code == "RESOURCE_EXHAUSTED" and not from_service and _TOO_LARGE in details:
        code = "INVALID_ARGUMENT"
    template = "{details}" if from_service else _NETWORK_ERROR_MESSAGES.get(code, "{details}")
    message = attributes.pop("message") or template.format(address=address, model=model, details=details) or code
    request_id = trailers.get(_REQUEST_ID, request_id)
    return _ERROR_TYPES.get(code, HeadwaiterError)(message, code=code, request_id=request_id, **attributes)


_NAMES = "available models: "
_NO_REPLICA_MESSAGE = "Model {model!r} has no running replica: the service is starting, stopping or replacing it."


def check_not_found(error: NotFound, model: str, names: Sequence[str] | None) -> HeadwaiterError:
    """Complete the error about an unknown model with the names of the models, unless it has them.

    Ray Serve's proxy also returns NOT_FOUND while an application has no route. `names` shows it: the catalog lists the
    model, or is not there itself (None).
    """
    if _NAMES in error.message:
        return error
    if names is None or model in names:
        return Unavailable(_NO_REPLICA_MESSAGE.format(model=model), request_id=error.request_id)
    listed = f"{_NAMES}{', '.join(names) or 'none'}"
    return NotFound(f"{error.message.removesuffix('.')}; {listed}.", request_id=error.request_id)


def is_catalog_absent(error: grpc.RpcError) -> bool:
    """Whether the call that lists the models failed because the service is starting or stopping."""
    return error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)


def _parse_details(details: Iterable[Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"from_service": False, "message": None}
    bad, info, retry = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in details:
        if detail.Unpack(bad) and bad.field_violations:
            attributes |= {"field": bad.field_violations[0].field, "message": bad.field_violations[0].description}
        elif detail.Unpack(info) and info.domain == _DOMAIN:
            attributes |= {"from_service": True, "limit": _parse_number(info.metadata.get("limit"))}
        elif detail.Unpack(retry):
            attributes["retry_after"] = retry.retry_delay.ToTimedelta().total_seconds()
    return attributes


def _parse_number(text: str | None) -> float | None:
    if text is None:
        return None
    value = float(text)
    return int(value) if value.is_integer() else value
