"""Admission hook on Ray's own gRPC server: overloaded calls are rejected before dispatch, others are dispatched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray.serve._private.grpc_util import gRPCGenericServer

from headwaiter.api.keys import format_key_line, make_key
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.serving import admission_hook
from headwaiter.v1 import generation_pb2, generation_pb2_grpc, models_pb2, models_pb2_grpc
from tests.conftest import Packages
from tests.counts_kit import Counts
from tests.model_server_kit import overload

_DISPATCHED = [("x-dispatched", "true")]
_TIMEOUT_SECONDS = 120


def _accepting_handler(service_method: str, streaming_type: Any) -> Any:  # noqa: ARG001
    async def unary(_request: Any, context: Any) -> bytes:
        context.set_trailing_metadata(_DISPATCHED)
        return b""

    async def stream(_request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        context.set_trailing_metadata(_DISPATCHED)
        yield b""

    return stream if "STREAM" in streaming_type.name else unary


@asynccontextmanager
async def _server_with_admission(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, *, overloaded: bool, keys: Path | None = None
) -> AsyncIterator[tuple[grpc.aio.Channel, Counts]]:
    """Ray's gRPC server with the hook installed for one model server, which is overloaded or not."""
    monkeypatch.setattr(admission_hook, "_model_servers", [])
    counts = Counts()
    args = ModelServerArgs(
        name="writer", folder=packages("gpt2", "fp32").package.folder, settings={"threads": 1}, keys=keys
    )
    model_server = ModelServer(args, counts)
    if overloaded:
        overload(model_server)
    admission_hook.register(model_server)
    server = gRPCGenericServer(_accepting_handler)
    servicer_functions = (
        admission_hook.install,
        generation_pb2_grpc.add_GenerationServicer_to_server,
        models_pb2_grpc.add_ModelsServicer_to_server,
    )
    for add_servicer in servicer_functions:
        add_servicer(model_server, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yield channel, counts
    finally:
        await server.stop(None)
        model_server.close()


async def _generate(channel: grpc.aio.Channel, metadata: list[tuple[str, str]] | None = None) -> Any:
    call = generation_pb2_grpc.GenerationStub(channel).Generate(
        generation_pb2.GenerateRequest(prompt=["once"]), metadata=metadata
    )
    return await call, dict(await call.trailing_metadata())


async def test_call_without_overload_is_dispatched(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _server_with_admission(packages, monkeypatch, overloaded=False) as (channel, counts):
        _, trailers = await _generate(channel)
        assert trailers == dict(_DISPATCHED)
        assert not counts.codes


async def test_unary_call_under_overload_is_rejected_before_dispatch(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _server_with_admission(packages, monkeypatch, overloaded=True) as (channel, counts):
        with pytest.raises(grpc.aio.AioRpcError, match="writer is overloaded: the estimated wait is") as caught:
            await _generate(channel, [("x-request-id", "mine")])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["x-request-id"] == "mine"
        assert b"RetryInfo" in trailers["grpc-status-details-bin"]
        assert counts.codes == {("Generate", "RESOURCE_EXHAUSTED"): 1}


async def test_streaming_call_under_overload_is_rejected_before_dispatch(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _server_with_admission(packages, monkeypatch, overloaded=True) as (channel, counts):
        stream = generation_pb2_grpc.GenerationStub(channel).GenerateStream(
            generation_pb2.GenerateStreamRequest(prompt="once")
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(stream))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counts.codes == {("GenerateStream", "RESOURCE_EXHAUSTED"): 1}


async def test_describe_under_overload_is_dispatched(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _server_with_admission(packages, monkeypatch, overloaded=True) as (channel, _):
        call = models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        await call
        assert dict(await call.trailing_metadata()) == dict(_DISPATCHED)


async def test_unauthenticated_call_under_overload_is_unauthenticated(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = make_key()
    keys = tmp_path / "keys"
    keys.write_text(format_key_line("client", key) + "\n")
    async with _server_with_admission(packages, monkeypatch, overloaded=True, keys=keys) as (channel, counts):
        for bearer, code in ((None, "UNAUTHENTICATED"), (key, "RESOURCE_EXHAUSTED")):
            metadata = [("authorization", f"Bearer {bearer}")] if bearer else None
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _generate(channel, metadata)
            assert caught.value.code().name == code
    assert counts.codes == {("Generate", "UNAUTHENTICATED"): 1, ("Generate", "RESOURCE_EXHAUSTED"): 1}
