"""Failures as HTTP responses, in the words of whoever sent JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message
from grpc import StatusCode
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.ingress.calls import Call
from service.ingress.errors import FailedError, Failure, explain
from service.ingress.http.encoding import dump
from service.ingress.http.fields import alternatives, inputs_of

_NOT_FOUND, _NOT_ALLOWED = 404, 405


def respond(failure: Failure, headers: Mapping[str, str] | None = None) -> Response:
    body = dump(failure.body())
    return Response(body, failure.status, {**_headers(failure), **(headers or {})}, "application/json")


def _headers(failure: Failure) -> dict[str, str]:
    match failure.code:
        case StatusCode.UNAUTHENTICATED:
            return {"www-authenticate": "Bearer"}
        case StatusCode.UNIMPLEMENTED:
            return {"allow": ""}  # no way of asking makes the model do another task
        case StatusCode.RESOURCE_EXHAUSTED:
            return {"retry-after": str(max(1, math.ceil(failure.retry_after or 0)))}
        case _:
            return {}


def in_json_words(failure: Failure, request: Message) -> Failure:
    """A choice among inputs is `input[2].text` in the protocol and `text[2]` in JSON."""
    descriptor: Any = request.DESCRIPTOR
    inputs = inputs_of(descriptor)
    if failure.field is None or inputs is None or not alternatives(inputs.message_type):
        return failure
    given = next((each.ListFields()[0][0].name for each in getattr(request, inputs.name)), inputs.name)
    field = re.sub(rf"^{inputs.name}\[(\d+)\](?:\.\w+)?", rf"{given}[\1]", failure.field)
    field = given if field == inputs.name else field
    return replace(failure, field=field, message=failure.message.replace(failure.field, field, 1))


async def failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, FailedError)
    return respond(error.failure)


async def refused(request: Request, error: Exception) -> Response:
    """No such page, or another way of asking."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == _NOT_ALLOWED:
        allowed = ", ".join(sorted(Headers(error.headers)["allow"].split(", ")))
        sentence = f"{path} is not there for {request.method}; it is for {allowed}"
        return respond(Failure(StatusCode.UNIMPLEMENTED, sentence), {"allow": allowed})
    if error.status_code == _NOT_FOUND:
        return respond(Failure(StatusCode.NOT_FOUND, f"{path} is not there"))
    return respond(Failure(StatusCode.INVALID_ARGUMENT, str(error.detail)))


async def broken(request: Request, error: Exception) -> Response:
    return respond(explain(error, Call.begin("", request.headers).request_id))
