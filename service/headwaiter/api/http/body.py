"""Reads request bodies up to the size limit and converts them to protobuf messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from headwaiter.api.errors import BodyTimeoutError
from headwaiter.api.http.encoding import OFFLOAD_BYTES
from headwaiter.api.http.fields import has_images, inputs_field
from headwaiter.api.http.multipart import read_form, to_json_content
from headwaiter.api.http.schema import request_adapter
from headwaiter.api.http.validation_errors import check_structure, to_input_error
from headwaiter.api.methods import Method
from headwaiter.tasks.errors import InputError, shorten

_MB = 1 << 20
BODY_SECONDS = 30.0  # for the whole body, and more if it arrives at MIN_BYTES_PER_SECOND
MIN_BYTES_PER_SECOND = 64 << 10
_CONTENT_TYPE = "content-type"
_FORM = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads bodies with the schema of `route_method` into requests of `target_method`, which is the same method or its
    streaming variant with a single input."""

    route_method: Method
    target_method: Method
    limit_mb: int

    @property
    def descriptor(self) -> Any:
        return self.route_method.request.DESCRIPTOR

    async def read(self, request: Request, hold: Callable[[int], None]) -> Message:
        """Read a body and convert it. `hold` is called with the size so far and raises if there is no memory for it."""
        content_type = _content_type(request)
        chunks = _read_limited(request, self.limit_mb, hold)
        if content_type == _FORM and has_images(self.descriptor):
            parts = await read_form(request.headers[_CONTENT_TYPE], chunks)
            return await asyncio.to_thread(lambda: self.message(to_json_content(parts, self.descriptor)))
        if content_type not in ("", "application/json") and not content_type.endswith("+json"):
            raise InputError(
                f"{_CONTENT_TYPE} is {shorten(content_type)}; it must be application/json", field=_CONTENT_TYPE
            )
        async with aclosing(chunks):
            body = b"".join([chunk async for chunk in chunks])
        return await asyncio.to_thread(self._parse, body) if len(body) > OFFLOAD_BYTES else self._parse(body)

    def message(self, content: Any) -> Message:
        """Validate JSON content and convert it to a request message. Raises InputError."""
        if isinstance(content, dict | list):
            check_structure(content, self.descriptor)
        try:
            values = request_adapter(self.descriptor).validate_python(content)
        except ValidationError as error:
            raise to_input_error(error, self.descriptor) from None
        return self.target_method.request(
            **(values if self.target_method is self.route_method else self._as_stream_request(values))
        )

    def _parse(self, body: bytes) -> Message:
        try:
            content = from_json(body, allow_inf_nan=False) if body else {}
        except ValueError as error:
            raise InputError(f"the body is not valid JSON: {error}", field="") from None
        return self.message(content)

    def _as_stream_request(self, values: dict[str, Any]) -> dict[str, Any]:
        inputs = inputs_field(self.descriptor)
        assert inputs is not None
        name, items = inputs.name, values[inputs.name]
        if len(items) > 1:
            raise InputError(f"{name} has {len(items):,} inputs; the limit for streams is 1", field=name, limit=1)
        return {**values, name: items[0]}


async def _read_limited(request: Request, limit_mb: int, hold: Callable[[int], None]) -> AsyncGenerator[bytes, None]:
    content_length = request.headers.get("content-length", "")
    if content_length.isascii() and content_length.isdigit() and int(content_length) > limit_mb * _MB:
        raise _too_large(f"{int(content_length) / _MB:,.1f}", limit_mb)
    size, started_at = 0, asyncio.get_running_loop().time()
    async with aclosing(request.stream()) as chunks:
        while True:
            try:
                async with asyncio.timeout_at(started_at + BODY_SECONDS + size / MIN_BYTES_PER_SECOND):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                message = f"{size:,} bytes of the body arrived within {BODY_SECONDS:g} seconds; it must arrive faster"
                raise BodyTimeoutError(message) from None
            if chunk is None:
                return
            size += len(chunk)
            if size > limit_mb * _MB:
                raise _too_large(f"more than {limit_mb:,}", limit_mb)
            hold(size)
            yield chunk


def _too_large(size: str, limit_mb: int) -> InputError:
    return InputError(f"the request has {size} MiB; the limit is {limit_mb:,} MiB", field="", limit=limit_mb)


def _content_type(request: Request) -> str:
    header = request.headers.get(_CONTENT_TYPE, "")
    return header.partition(";")[0].strip().lower()
