"""At the door of Ray's own gRPC server: who is turned away there, in which words, and who is let in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray.serve._private.grpc_util import gRPCGenericServer

from headwaiter.v1 import generation_pb2, generation_pb2_grpc, models_pb2, models_pb2_grpc
from service.host import HostArgs, ModelHost
from service.ingress import door
from service.keys import line_for, make_key
from tests.conftest import Packages
from tests.counts_kit import Counts

_INSIDE = [("met", "inside")]


def _let_in(service_method: str, streaming_type: Any) -> Any:  # noqa: ARG001
    async def answer(_request: Any, context: Any) -> bytes:
        context.set_trailing_metadata(_INSIDE)
        return b""

    async def stream(_request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        context.set_trailing_metadata(_INSIDE)
        yield b""

    return stream if "STREAM" in streaming_type.name else answer


@asynccontextmanager
async def _guarded(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, *, full: bool, keys: Path | None = None
) -> AsyncIterator[tuple[grpc.aio.Channel, Counts]]:
    """Ray's server, with a model at its door whose line is full or not."""
    monkeypatch.setattr(door, "_hosts", [])
    counts = Counts()
    args = HostArgs(name="writer", folder=packages("gpt2", "fp32").package.folder, threads=1, keys=keys)
    host = ModelHost(args, counts)
    if full:
        host.desk.limits["wait_ms"] = -1  # even no wait is too long
    door.stand_for(host)
    server = gRPCGenericServer(_let_in)
    adding = (
        door.guard,
        generation_pb2_grpc.add_GenerationServicer_to_server,
        models_pb2_grpc.add_ModelsServicer_to_server,
    )
    for add in adding:
        add(host, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel, counts
    finally:
        await server.stop(None)
        host.close()


async def _generate(channel: grpc.aio.Channel, metadata: list[tuple[str, str]] | None = None) -> Any:
    call = generation_pb2_grpc.GenerationStub(channel).Generate(
        generation_pb2.GenerateRequest(prompt=["once"]), metadata=metadata
    )
    return await call, dict(await call.trailing_metadata())


async def test_with_room_all_are_let_in(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _guarded(packages, monkeypatch, full=False) as (channel, counts):
        _, trailers = await _generate(channel)
        assert trailers == dict(_INSIDE)
        assert not counts.codes


async def test_with_none_they_are_turned_away(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _guarded(packages, monkeypatch, full=True) as (channel, counts):
        with pytest.raises(grpc.aio.AioRpcError, match="writer is busy: the wait would be") as caught:
            await _generate(channel, [("x-request-id", "mine")])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["x-request-id"] == "mine"
        assert b"RetryInfo" in trailers["grpc-status-details-bin"]
        assert counts.codes == {("Generate", "RESOURCE_EXHAUSTED"): 1}


async def test_a_stream_ends_before_it_begins(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _guarded(packages, monkeypatch, full=True) as (channel, counts):
        stream = generation_pb2_grpc.GenerationStub(channel).GenerateStream(
            generation_pb2.GenerateStreamRequest(prompt="once")
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(stream))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counts.codes == {("GenerateStream", "RESOURCE_EXHAUSTED"): 1}


async def test_what_needs_no_place_is_let_in(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _guarded(packages, monkeypatch, full=True) as (channel, _):
        call = models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        await call
        assert dict(await call.trailing_metadata()) == dict(_INSIDE)


async def test_who_may_not_ask_is_told_that(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = make_key()
    keys = tmp_path / "keys"
    keys.write_text(line_for("app", key) + "\n")
    async with _guarded(packages, monkeypatch, full=True, keys=keys) as (channel, counts):
        for bearer, code in ((None, "UNAUTHENTICATED"), (key, "RESOURCE_EXHAUSTED")):
            metadata = [("authorization", f"Bearer {bearer}")] if bearer else None
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _generate(channel, metadata)
            assert caught.value.code().name == code
    assert counts.engine["refused"] == 1, "who may not ask was not refused for want of room"
