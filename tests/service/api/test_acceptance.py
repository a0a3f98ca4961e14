"""Requests are authenticated and admitted before they are read, and only once."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from headwaiter.api import grpc_servicer
from headwaiter.api.http.model import build_app
from headwaiter.api.methods import METHODS
from headwaiter.v1 import classification_pb2
from tests.conftest import Packages
from tests.model_server_kit import overload, serving

_REQUEST = classification_pb2.ClassifyRequest(input=[{"text": "a bird"}])


class _CallContext:
    """The part of a gRPC context that the servicer uses, in memory."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.trailers: list[tuple[str, Any]] = []

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-request-id", "mine"),)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None: ...

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, Any]]) -> None:
        self.trailers = trailing_metadata


async def test_http_overloaded_model_rejects_before_reading_the_body(packages: Packages) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    async with serving(packages, "bert") as (_, model_server):
        app = await build_app(model_server.endpoint, ready=lambda: True)
        overload(model_server)
        scope = {"type": "http", "method": "POST", "path": "/classify", "query_string": b"", "root_path": ""}
        await app({**scope, "headers": [(b"content-length", b"99")], "http_version": "1.1"}, receive, send)
        assert sent[0]["status"] == 429
        assert json.loads(sent[1]["body"])["error"]["code"] == "RESOURCE_EXHAUSTED"
        assert model_server.metrics.codes == {("Classify", "RESOURCE_EXHAUSTED"): 1}


@pytest.mark.parametrize("is_accepted_first", [True, False])
async def test_grpc_accepted_call_is_not_judged_again(packages: Packages, is_accepted_first: bool) -> None:
    async with serving(packages, "bert") as (_, model_server):
        context = _CallContext()
        if is_accepted_first:
            assert grpc_servicer.accept(model_server.endpoint, METHODS["Classify"], context)
        overload(model_server)
        response = await model_server.Classify(_REQUEST, context)  # type: ignore[attr-defined]
        code = "OK" if is_accepted_first else "RESOURCE_EXHAUSTED"
        assert bool(response.results) == is_accepted_first
        assert model_server.metrics.codes == {("Classify", code): 1}
        assert ("x-request-id", "mine") in context.trailers
