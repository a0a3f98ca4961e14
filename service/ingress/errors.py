"""What went wrong, for whoever called: a status, one sentence, and where there is one, the field and its limit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from service.engine.episodes import EpisodeGoneError, EpisodesFullError
from service.engine.jobs import ClosedError, DeadlineError, QueueFullError
from service.tasks.errors import InputError

DOMAIN = "headwaiter"


class UnauthenticatedError(Exception):
    """No key, or a wrong one."""


class WrongTaskError(Exception):
    """The model does another task."""


class LeftError(Exception):
    """The caller has gone."""


class UnknownModelError(Exception):
    """No such model, or no such page of it."""


CODES: dict[type[BaseException], StatusCode] = {
    InputError: StatusCode.INVALID_ARGUMENT,
    UnauthenticatedError: StatusCode.UNAUTHENTICATED,
    UnknownModelError: StatusCode.NOT_FOUND,
    WrongTaskError: StatusCode.UNIMPLEMENTED,
    QueueFullError: StatusCode.RESOURCE_EXHAUSTED,
    EpisodesFullError: StatusCode.RESOURCE_EXHAUSTED,
    EpisodeGoneError: StatusCode.ABORTED,
    DeadlineError: StatusCode.DEADLINE_EXCEEDED,
    asyncio.CancelledError: StatusCode.CANCELLED,
    LeftError: StatusCode.CANCELLED,
    ClosedError: StatusCode.UNAVAILABLE,
}
HTTP: dict[StatusCode, int] = {
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
    code: StatusCode
    message: str
    field: str | None = None
    limit: float | None = None
    retry_after: float | None = None  # seconds

    @property
    def status(self) -> int:
        return HTTP[self.code]

    def body(self) -> dict[str, Any]:
        facts = {"code": self.code.name, "message": self.message, "field": self.field, "limit": _plain(self.limit)}
        return {"error": {name: value for name, value in facts.items() if value is not None}}

    def details(self) -> bytes:
        """The same for gRPC: a google.rpc.Status, for the trailer `grpc-status-details-bin`."""
        known = {"limit": str(_plain(self.limit))} if self.limit is not None else {}
        parts: list[Any] = [error_details_pb2.ErrorInfo(reason=self.code.name, domain=DOMAIN, metadata=known)]
        if self.field is not None:
            violation = error_details_pb2.BadRequest.FieldViolation(field=self.field, description=self.message)
            parts.append(error_details_pb2.BadRequest(field_violations=[violation]))
        if self.retry_after is not None:
            delay = Duration()
            delay.FromMilliseconds(round(1e3 * self.retry_after))
            parts.append(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for part in parts:
            packed = Packed()
            packed.Pack(part)
            status.details.append(packed)
        return status.SerializeToString()


class FailedError(Exception):
    """A failure on its way out; what caused it has been counted and logged."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def explain(error: BaseException, request_id: str) -> Failure:
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return Failure(
                code,
                str(error) or code.name.lower(),
                getattr(error, "field", None),
                getattr(error, "limit", None),
                getattr(error, "retry_after", None),
            )
    return Failure(StatusCode.INTERNAL, f"request {request_id} failed; the service's log says why")


def _plain(limit: float | None) -> float | None:
    return int(limit) if limit is not None and float(limit).is_integer() else limit
