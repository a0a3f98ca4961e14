"""Converts failures to HTTP responses, with field names as in the JSON body."""

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

from headwaiter.api.context import RequestContext
from headwaiter.api.errors import BodyTimeoutError, FailedError, Failure, to_failure
from headwaiter.api.http.encoding import dump
from headwaiter.api.http.fields import inputs_field, oneof_fields
from headwaiter.tasks.errors import shorten

_NOT_FOUND, _NOT_ALLOWED = 404, 405
_MAX_PATH_CHARS = 200


def respond(failure: Failure, headers: Mapping[str, str] | None = None) -> Response:
    body = dump(failure.body())
    return Response(body, failure.status, {**_headers(failure), **(headers or {})}, "application/json")


def _headers(failure: Failure) -> dict[str, str]:
    if failure.status == BodyTimeoutError.http_status:
        return {"connection": "close"}  # the rest of the body is not waited for
    match failure.code:
        case StatusCode.UNAUTHENTICATED:
            return {"www-authenticate": "Bearer"}
        case StatusCode.UNIMPLEMENTED:
            return {"allow": ""}  # no HTTP method is allowed: the model does not support this path
        case StatusCode.RESOURCE_EXHAUSTED | StatusCode.UNAVAILABLE:
            return {"retry-after": str(max(1, math.ceil(failure.retry_after or 0)))}
        case _:
            return {}


def with_json_field_names(failure: Failure, request: Message) -> Failure:
    """Rename fields of a oneof of inputs: `input[2].text` in protobuf is `text[2]` in JSON."""
    descriptor: Any = request.DESCRIPTOR
    inputs = inputs_field(descriptor)
    if failure.field is None or inputs is None or not oneof_fields(inputs.message_type):
        return failure
    json_name = next((item.ListFields()[0][0].name for item in getattr(request, inputs.name)), inputs.name)
    field = re.sub(rf"^{inputs.name}\[(\d+)\](?:\.\w+)?", rf"{json_name}[\1]", failure.field)
    field = json_name if field == inputs.name else field
    return replace(failure, field=field, message=failure.message.replace(failure.field, field, 1))


async def failure_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, FailedError)
    return respond(error.failure)


async def http_error_response(request: Request, error: Exception) -> Response:
    """Respond to errors of the router: unknown paths and methods that are not allowed."""
    assert isinstance(error, HTTPException)
    path = shorten(request.scope["path"], _MAX_PATH_CHARS)
    if error.status_code == _NOT_ALLOWED:
        allowed = ", ".join(sorted(Headers(error.headers)["allow"].split(", ")))
        message = f"{path} does not allow {shorten(request.method)}; it allows {allowed}"
        return respond(Failure(StatusCode.UNIMPLEMENTED, message), {"allow": allowed})
    if error.status_code == _NOT_FOUND:
        return respond(Failure(StatusCode.NOT_FOUND, f"{path} does not exist"))
    return respond(Failure(StatusCode.INVALID_ARGUMENT, str(error.detail)))


async def unexpected_error_response(request: Request, error: Exception) -> Response:
    return respond(to_failure(error, RequestContext.begin("", request.headers).request_id))
