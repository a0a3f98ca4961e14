"""gRPC of a single process, where it is not part of the contract with Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from headwaiter.api.keys import format_key_line, make_key
from headwaiter.serving.config import Service
from headwaiter.v1 import classification_pb2, classification_pb2_grpc, models_pb2, models_pb2_grpc
from tests.model_server_kit import overload
from tests.service.serving.single_process.conftest import Run

TIMEOUT_SECONDS = 60
TEXTS = {"texts": "bert"}
BOTH = {"texts": "bert", "pictures": "vit"}
REQUEST = classification_pb2.ClassifyRequest(input=[{"text": "ab"}])


def channel_to(service: Service) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        f"127.0.0.1:{service.config.grpc.port}", options=[("grpc.max_send_message_length", -1)]
    )


async def classify(channel: grpc.aio.Channel, request: Any = REQUEST, **metadata: str) -> Any:
    stub = classification_pb2_grpc.ClassificationStub(channel)
    return await stub.Classify(request, metadata=list(metadata.items()), timeout=TIMEOUT_SECONDS)


async def test_application_may_be_omitted_with_one_model(run: Run) -> None:
    async with run(TEXTS) as (_, service), channel_to(service) as channel:
        assert (await classify(channel)).model.name == "texts"
        assert (await classify(channel, application="texts")).model.name == "texts"
        response = await models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        assert response.name == "texts"


async def test_application_omitted_with_several_models_is_not_found(run: Run) -> None:
    async with run(BOTH) as (_, service), channel_to(service) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await classify(channel)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "`application`" in caught.value.details()
        assert "pictures, texts" in caught.value.details()
        listed = await models_pb2_grpc.ModelsStub(channel).ListModels(models_pb2.ListModelsRequest())
        assert [model.name for model in listed.models] == ["pictures", "texts"]


async def test_rejected_call_is_not_read(run: Run, tmp_path: Path) -> None:
    """The message is larger than gRPC's limit, so that reading it would fail with another status."""
    large = classification_pb2.ClassifyRequest(input=[{"text": "a" * (3 << 20)}])
    key = make_key()
    (tmp_path / "keys.txt").write_text(format_key_line("alice", key))
    models = {"texts": ("bert", {"limits": {"message_mb": 1}})}
    async with run(models, auth={"keys": "keys.txt"}) as (process, service), channel_to(service) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await classify(channel, large)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        authorization = {"authorization": f"Bearer {key}"}
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
            await classify(channel, large, **authorization)
        overload(process.models.current["texts"].server)
        with pytest.raises(grpc.aio.AioRpcError, match="estimated wait") as caught:
            await classify(channel, large, **authorization)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("message", [b"\xff\xff", None])
async def test_malformed_or_missing_message_is_invalid(run: Run, message: bytes | None) -> None:
    async def send() -> AsyncIterator[bytes]:
        if message is not None:
            yield message

    async with run(TEXTS) as (_, service), channel_to(service) as channel:
        call = channel.stream_unary("/headwaiter.v1.Classification/Classify")
        with pytest.raises(grpc.aio.AioRpcError, match="ClassifyRequest") as caught:
            await call(send(), timeout=TIMEOUT_SECONDS)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_health_is_reported_overall_and_by_model(run: Run) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    async with run(BOTH) as (_, service), channel_to(service) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "texts", "pictures", "headwaiter.v1.Models"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == serving
        listed = await stub.List(health_pb2.HealthListRequest())
        assert {name: status.status for name, status in listed.statuses.items()} == {"": serving}
        for request, metadata in (({"service": "soup"}, []), ({}, [("application", "soup")])):
            with pytest.raises(grpc.aio.AioRpcError, match="no model is named soup") as caught:
                await stub.Check(health_pb2.HealthCheckRequest(**request), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            assert "texts" not in caught.value.details()  # health needs no API key


async def test_idle_stream_with_keepalive_pings_stays_open(run: Run) -> None:
    pings = [("grpc.keepalive_time_ms", 200), ("grpc.http2.max_pings_without_data", 0)]
    async with run(TEXTS) as (_, service):
        address = f"127.0.0.1:{service.config.grpc.port}"
        async with grpc.aio.insecure_channel(address, options=pings) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(watch.read(), 6)  # gRPC sends one ping a second at most


async def test_health_while_draining_is_not_serving(run: Run) -> None:
    async with run(TEXTS) as (process, service), channel_to(service) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), metadata=[("application", "texts")])
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await process.drain()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        response = await stub.Check(health_pb2.HealthCheckRequest())
        assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="stopping") as caught:
            await classify(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_describes_services(run: Run, version: str) -> None:
    async with run(TEXTS) as (_, service), channel_to(service) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(
            iter(
                [
                    reflection_pb2.ServerReflectionRequest(list_services=""),
                    reflection_pb2.ServerReflectionRequest(file_containing_symbol="headwaiter.v1.Classification"),
                ]
            )
        )
        listed, described = [response async for response in call]
        names = [service.name for service in listed.list_services_response.service]
        assert "headwaiter.v1.Classification" in names
        assert described.file_descriptor_response.file_descriptor_proto
