"""Arbitrary gRPC messages never cause INTERNAL errors, and the server keeps serving."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwaiter.api.methods import METHODS
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.v1 import models_pb2
from loadtest.overhead.plain_grpc_server import grpc_server
from tests.conftest import Packages
from tests.counts_kit import Counts
from tests.messages_kit import messages

KINDS = {
    "marian": ["Translate", "TranslateStream"],
    "caption-vit": ["Caption", "CaptionStream"],
    "bert": ["Classify"],
    "vit": ["Classify"],
    "detr": ["Detect"],
    "decision_transformer": ["Act", "Episode"],
    "gpt2": ["Generate", "GenerateStream", "GenerateImages", "ListModels"],
}
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
}
TIMEOUT_SECONDS = 60
SHORT = {"max_new_tokens": st.integers(-1, 6), "state": st.lists(st.floats(-1, 1, width=32), min_size=5, max_size=5)}


@contextmanager
def grpc_server_thread(model_server: ModelServer) -> Iterator[str]:
    """Run the server on an event loop in another thread; yields its address."""
    addresses: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []
    started, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with grpc_server(model_server) as address:
            addresses.append(address)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(TIMEOUT_SECONDS)
    try:
        yield addresses[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_arbitrary_messages_never_cause_internal_error(packages: Packages, kind: str, name: str) -> None:
    method, folder = METHODS[name], packages(kind, "fp32").package.folder
    args = ModelServerArgs(name=kind, folder=folder, settings={"threads": 1, "limits": {"new_tokens": 8}})
    model_server = ModelServer(args, Counts())
    try:
        with grpc_server_thread(model_server) as address, grpc.insecure_channel(address) as channel:
            call = caller(channel, method)

            @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
            @given(st.lists(messages(method.request, **SHORT), min_size=1, max_size=4))
            def send(requests: list[Any]) -> None:
                code, details = call(requests)
                assert code in EXPECTED, details

            send()
            describe = channel.unary_unary(
                "/headwaiter.v1.Models/Describe",
                models_pb2.DescribeRequest.SerializeToString,
                models_pb2.DescribeResponse.FromString,
            )
            assert describe(models_pb2.DescribeRequest(), timeout=TIMEOUT_SECONDS).name == kind
            assert not [code for _, code in model_server.metrics.codes if code == "INTERNAL"]
    finally:
        model_server.close()


def caller(channel: grpc.Channel, method: Any) -> Any:
    """A function that calls the method with messages and returns the status code and details."""
    path = f"/{method.service}/{method.name}"
    arity = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    send = getattr(channel, arity)(path, method.request.SerializeToString, method.response.FromString)

    def call(requests: list[Any]) -> tuple[grpc.StatusCode, str]:
        try:
            response = send(iter(requests) if method.client_streaming else requests[0], timeout=30)
            if method.server_streaming:
                list(response)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return grpc.StatusCode.OK, ""

    return call
