"""Whatever a client sends is answered or refused in words: no INTERNAL, and the service goes on."""

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

from headwaiter.v1 import models_pb2
from loadtest.plain import listening
from service.host import HostArgs, ModelHost
from service.ingress.methods import METHODS
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
SHORT = {"max_new_tokens": st.integers(-1, 6), "state": st.lists(st.floats(-1, 1, width=32), min_size=5, max_size=5)}


@contextmanager
def in_a_thread(host: ModelHost) -> Iterator[str]:
    """The address of a server whose event loop is not this thread's."""
    address: list[str] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with listening(host) as where:
            address.append(where)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait()
    try:
        yield address[0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_any_message(packages: Packages, kind: str, name: str) -> None:
    method, folder = METHODS[name], packages(kind, "fp32").package.folder
    host = ModelHost(HostArgs(name=kind, folder=folder, threads=1, limits={"new_tokens": 8}), Counts())
    try:
        with in_a_thread(host) as address, grpc.insecure_channel(address) as channel:
            call = caller(channel, method)

            @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
            @given(st.lists(messages(method.request, **SHORT), min_size=1, max_size=4))
            def sent(requests: list[Any]) -> None:
                code, details = call(requests)
                assert code in EXPECTED, details

            sent()
            describe = channel.unary_unary(
                "/headwaiter.v1.Models/Describe",
                models_pb2.DescribeRequest.SerializeToString,
                models_pb2.DescribeResponse.FromString,
            )
            assert describe(models_pb2.DescribeRequest()).name == kind
            assert not [code for _, code in host.metrics.codes if code == "INTERNAL"]
    finally:
        host.close()


def caller(channel: grpc.Channel, method: Any) -> Any:
    path = f"/{method.service}/{method.name}"
    kind = f"{'stream' if method.takes_stream else 'unary'}_{'stream' if method.gives_stream else 'unary'}"
    send = getattr(channel, kind)(path, method.request.SerializeToString, method.response.FromString)

    def call(requests: list[Any]) -> tuple[grpc.StatusCode, str]:
        try:
            answer = send(iter(requests) if method.takes_stream else requests[0], timeout=30)
            if method.gives_stream:
                list(answer)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return grpc.StatusCode.OK, ""

    return call
