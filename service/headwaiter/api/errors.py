"""Mapping of exceptions to gRPC and HTTP statuses. A failure has a code, a one-sentence message and, if known, the
offending field and its limit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from headwaiter.engine.episodes import EpisodeClosedError, EpisodesFullError
from headwaiter.engine.jobs import ClosedError, DeadlineError, QueueFullError
from headwaiter.tasks.errors import InputError, shorten

DOMAIN = "headwaiter"


class UnauthenticatedError(Exception):
    """The request has no API key or an invalid one."""


class WrongTaskError(Exception):
    """The model's task does not have the requested method."""


class PeerDisconnectedError(Exception):
    """The client disconnected before its request was dispatched."""


class BodyTimeoutError(Exception):
    """The body of an HTTP request arrives too slowly."""

    http_status = 408


class UnknownModelError(Exception):
    """No model is served under the requested name, or the call names none."""

    def __init__(self, name: str | None, available: Iterable[str]) -> None:
        problem = (
            "the metadata key `application` must name a model" if name is None else f"no model is named {shorten(name)}"
        )
        super().__init__(f"{problem}; available models: {', '.join(available) or 'none'}")


class NoReplicaError(Exception):
    """The model is configured, but none of its replicas runs."""

    retry_after = 1.0

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has no running replica; try again")


def absent_model_error(name: str, configured: Collection[str]) -> Exception:
    """The error of a call to a model that does not answer: it has no replica now, or there is no such model."""
    return NoReplicaError(name) if name in configured else UnknownModelError(name, configured)


STATUS_CODES: dict[type[BaseException], StatusCode] = {
    InputError: StatusCode.INVALID_ARGUMENT,
    UnauthenticatedError: StatusCode.UNAUTHENTICATED,
    UnknownModelError: StatusCode.NOT_FOUND,
    WrongTaskError: StatusCode.UNIMPLEMENTED,
    QueueFullError: StatusCode.RESOURCE_EXHAUSTED,
    EpisodesFullError: StatusCode.RESOURCE_EXHAUSTED,
    EpisodeClosedError: StatusCode.ABORTED,
    DeadlineError: StatusCode.DEADLINE_EXCEEDED,
    BodyTimeoutError: StatusCode.DEADLINE_EXCEEDED,
    asyncio.CancelledError: StatusCode.CANCELLED,
    PeerDisconnectedError: StatusCode.CANCELLED,
    ClosedError: StatusCode.UNAVAILABLE,
    NoReplicaError: StatusCode.UNAVAILABLE,
}
HTTP_STATUSES: dict[StatusCode, int] = {
    StatusCode.OK: 200,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.NOT_FOUND: 404,
    StatusCode.UNIMPLEMENTED: 405,
    StatusCode.ABORTED: 409,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.CANCELLED: 499,
    StatusCode.INTERNAL: 500,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that a client receives, for both transports."""

    code: StatusCode
    message: str
    field: str | None = None
    limit: float | None = None
    retry_after: float | None = None  # seconds
    http_status: int | None = None  # default: that of the code

    @property
    def status(self) -> int:
        """HTTP status code."""
        return self.http_status or HTTP_STATUSES[self.code]

    def body(self) -> dict[str, Any]:
        """The JSON body of the HTTP response."""
        error = {
            "code": self.code.name,
            "message": self.message,
            "field": self.field,
            "limit": _int_if_whole(self.limit),
        }
        return {"error": {name: value for name, value in error.items() if value is not None}}

    def details(self) -> bytes:
        """The serialized google.rpc.Status for the gRPC trailer `grpc-status-details-bin`."""
        metadata = {"limit": str(_int_if_whole(self.limit))} if self.limit is not None else {}
        details: list[Any] = [error_details_pb2.ErrorInfo(reason=self.code.name, domain=DOMAIN, metadata=metadata)]
        if self.field is not None:
            violation = error_details_pb2.BadRequest.FieldViolation(field=self.field, description=self.message)
            details.append(error_details_pb2.BadRequest(field_violations=[violation]))
        if self.retry_after is not None:
            delay = Duration()
            delay.FromMilliseconds(round(1e3 * self.retry_after))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in details:
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        return status.SerializeToString()


class FailedError(Exception):
    """Carries a failure to the transport layer; its cause has already been recorded and logged."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def to_failure(error: BaseException, request_id: str) -> Failure:
    """Map an exception to a failure. Unexpected exceptions become INTERNAL, without their message."""
    for exception_type, code in STATUS_CODES.items():
        if isinstance(error, exception_type):
            return Failure(
                code,
                str(error) or code.name.lower(),
                getattr(error, "field", None),
                getattr(error, "limit", None),
                getattr(error, "retry_after", None),
                getattr(error, "http_status", None),
            )
    return Failure(StatusCode.INTERNAL, f"request {request_id} failed with an internal error; see the server log")


def _int_if_whole(limit: float | None) -> float | None:
    return int(limit) if limit is not None and float(limit).is_integer() else limit
