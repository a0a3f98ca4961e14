"""What went wrong, as exceptions.

Read from a failed call: its status code; from the trailers `x-request-id` and `grpc-status-details-bin`, a
google.rpc.Status with
- google.rpc.BadRequest: the first field violation's `field`, and its `description` as the message;
- google.rpc.ErrorInfo of the domain `headwaiter`: `limit` of its metadata;
- google.rpc.RetryInfo: when to come back.
A failure without an ErrorInfo of ours came from the network or a proxy: it gets a sentence of our own.
"""
# ruff: noqa: N818 -- each is named after what happened

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"
_REQUEST_ID = "x-request-id"
_DOMAIN = "headwaiter"


class HeadwaiterError(Exception):
    """All that a call can end with; `code` is the name of the gRPC status."""

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
        """Errors cross processes; without this they would arrive without their facts."""
        facts = {name: getattr(self, name) for name in ("code", "field", "limit", "request_id", "retry_after")}
        return partial(type(self), **facts), self.args


class InvalidInput(HeadwaiterError, ValueError):
    """The request is at fault; `field` and `limit` say where and what would be right."""

    code = "INVALID_ARGUMENT"


class Unauthenticated(HeadwaiterError):
    """No key, or a wrong one."""

    code = "UNAUTHENTICATED"


class NotFound(HeadwaiterError, LookupError):
    """No model of that name is served."""

    code = "NOT_FOUND"


class WrongTask(HeadwaiterError):
    """The model does something else."""

    code = "UNIMPLEMENTED"


class Overloaded(HeadwaiterError):
    """No room; `retry_after` says in how many seconds there may be some."""

    code = "RESOURCE_EXHAUSTED"


class EpisodeLost(HeadwaiterError):
    """The replica gave the episode's place away. The next step begins again by replaying what is known."""

    code = "ABORTED"


class DeadlineExceeded(HeadwaiterError, TimeoutError):
    """The call's time is up."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(HeadwaiterError):
    """The call was given up."""

    code = "CANCELLED"


class Unavailable(HeadwaiterError, ConnectionError):
    """Nobody there: starting, draining, or unreachable."""

    code = "UNAVAILABLE"


class InternalError(HeadwaiterError):
    """The service has a bug; whoever runs it finds the call by its `request_id`."""

    code = "INTERNAL"


_KINDS: dict[str, type[HeadwaiterError]] = {
    kind.code: kind
    for kind in (
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

_OF_A_PROXY = re.compile(r"http2 header with status: 50\d")
"""What gRPC makes of a proxy's own error page: the replica behind it broke off, HAProxy says 500 for that."""
_TOO_LARGE = "larger than max"
"""What gRPC says by itself of a message that is twice as large as the service allows."""
_OF_THE_NETWORK = {
    "INVALID_ARGUMENT": "The request is too large for {address}: {words}",
    "NOT_FOUND": "{address} serves no model {model!r}.",
    "DEADLINE_EXCEEDED": "{address} did not answer for {model!r} in time.",
    "UNAVAILABLE": "{address} is unavailable: {words}",
}


def from_rpc(error: grpc.RpcError, *, address: str, model: str, request_id: str) -> HeadwaiterError:
    trailers = {key: value for key, value in error.trailing_metadata() or () if key in (_DETAILS, _REQUEST_ID)}
    status = status_pb2.Status.FromString(trailers.get(_DETAILS, b""))
    facts = _facts(status.details)
    code, words = error.code().name, error.details() or ""
    ours = facts.pop("ours")
    if code == "UNKNOWN" and not ours and _OF_A_PROXY.search(words):
        code = "UNAVAILABLE"
    if code == "RESOURCE_EXHAUSTED" and not ours and _TOO_LARGE in words:
        code = "INVALID_ARGUMENT"
    template = "{words}" if ours else _OF_THE_NETWORK.get(code, "{words}")
    message = facts.pop("message") or template.format(address=address, model=model, words=words) or code
    request_id = trailers.get(_REQUEST_ID, request_id)
    return _KINDS.get(code, HeadwaiterError)(message, code=code, request_id=request_id, **facts)


def _facts(details: Iterable[Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"ours": False, "message": None}
    bad, info, retry = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in details:
        if detail.Unpack(bad) and bad.field_violations:
            facts |= {"field": bad.field_violations[0].field, "message": bad.field_violations[0].description}
        elif detail.Unpack(info) and info.domain == _DOMAIN:
            facts |= {"ours": True, "limit": _number(info.metadata.get("limit"))}
        elif detail.Unpack(retry):
            facts["retry_after"] = retry.retry_delay.ToTimedelta().total_seconds()
    return facts


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    value = float(text)
    return int(value) if value.is_integer() else value
