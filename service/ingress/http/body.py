"""The body of a call: read no further than it may be large, then turned into a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from service.ingress.http.encoding import HEAVY
from service.ingress.http.fields import has_images, inputs_of
from service.ingress.http.form import content_of, read_form
from service.ingress.http.mistakes import mistake
from service.ingress.http.schema import request_adapter
from service.ingress.methods import Method
from service.tasks.errors import InputError

_MB = 1 << 20
_CONTENT_TYPE = "content-type"
_FORM = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads bodies of `takes`; `gives` is the same, or for streams what takes one input instead of several."""

    takes: Method
    gives: Method
    limit_mb: int

    @property
    def shape(self) -> Any:
        return self.takes.request.DESCRIPTOR

    async def read(self, request: Request) -> Message:
        kind = _content_type(request)
        chunks = _limited(request, self.limit_mb)
        if kind == _FORM and has_images(self.shape):
            parts = await read_form(request.headers[_CONTENT_TYPE], chunks)
            return await asyncio.to_thread(lambda: self.message(content_of(parts, self.shape)))
        if kind not in ("", "application/json") and not kind.endswith("+json"):
            raise InputError(f"{_CONTENT_TYPE} is {kind}; it must be application/json", field=_CONTENT_TYPE)
        async with aclosing(chunks):
            body = b"".join([chunk async for chunk in chunks])
        return await asyncio.to_thread(self._parse, body) if len(body) > HEAVY else self._parse(body)

    def message(self, content: Any) -> Message:
        try:
            values = request_adapter(self.shape).validate_python(content)
        except ValidationError as error:
            raise mistake(error, self.shape) from None
        return self.gives.request(**(values if self.gives is self.takes else self._single(values)))

    def _parse(self, body: bytes) -> Message:
        try:
            content = from_json(body, allow_inf_nan=False) if body else {}
        except ValueError as error:
            raise InputError(f"the body is not JSON: {error}", field="") from None
        return self.message(content)

    def _single(self, values: dict[str, Any]) -> dict[str, Any]:
        inputs = inputs_of(self.shape)
        assert inputs is not None
        name, several = inputs.name, values[inputs.name]
        if len(several) > 1:
            raise InputError(f"{name} has {len(several):,} inputs; a stream takes one", field=name, limit=1)
        return {**values, name: several[0]}


async def _limited(request: Request, limit_mb: int) -> AsyncGenerator[bytes, None]:
    stated = request.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and int(stated) > limit_mb * _MB:
        raise _too_large(f"{int(stated) / _MB:,.1f}", limit_mb)
    size = 0
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            if size > limit_mb * _MB:
                raise _too_large(f"more than {limit_mb:,}", limit_mb)
            yield chunk


def _too_large(size: str, limit_mb: int) -> InputError:
    return InputError(f"the request has {size} MB; the limit is {limit_mb:,} MB", field="", limit=limit_mb)


def _content_type(request: Request) -> str:
    stated = request.headers.get(_CONTENT_TYPE, "")
    return stated.partition(";")[0].strip().lower()
