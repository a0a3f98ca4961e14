"""Request context: request id, timeout and peer address."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from headwaiter.api.context import RequestContext
from headwaiter.api.errors import FailedError
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.tasks.errors import InputError
from headwaiter.v1.models_pb2 import DescribeRequest
from tests.conftest import Packages
from tests.counts_kit import Counts


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        (None, True),
        ("ipv4:127.0.0.1:4711", True),
        ("ipv6:[::1]:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("unix:/tmp/socket", True),
        ("ipv4:10.1.2.3:4711", False),
        ("ipv4:12.70.0.1:4711", False),
        ("ipv6:[fe80::1]:4711", False),
        ("ipv6:%5B2001:db8::127.0.0.1%5D:4711", False),
    ],
)
async def test_local_server_without_keys_rejects_remote_peer(
    packages: Packages, peer: str | None, is_local: bool
) -> None:
    context = RequestContext.begin("Describe", {}, peer)
    assert context.is_local is is_local
    folder = packages("bert", "fp32").package.folder
    model_server = ModelServer(
        ModelServerArgs(name="bert", folder=folder, settings={"threads": 1}, local=True), Counts()
    )
    try:
        if is_local:
            assert await model_server.endpoint.answer(DescribeRequest(), context)
        else:
            with pytest.raises(FailedError) as caught:
                await model_server.endpoint.answer(DescribeRequest(), context)
            assert caught.value.failure.code is StatusCode.UNAUTHENTICATED
            assert "local" in caught.value.failure.message
    finally:
        model_server.close()


@pytest.mark.parametrize("request_id", ["a" * 128, "trace-1", "{7}"])
def test_valid_request_id_is_kept(request_id: str) -> None:
    assert RequestContext.begin("Translate", {"x-request-id": request_id}).request_id == request_id


@pytest.mark.parametrize("request_id", ["", "a" * 129, "two words", "líne", "line\nbreak"])
def test_invalid_request_id_is_replaced(request_id: str) -> None:
    replacement = RequestContext.begin("Translate", {"x-request-id": request_id}).request_id
    assert replacement != request_id
    assert len(replacement) == 32


@pytest.mark.parametrize("timeout", ["", "0", "-1", "1.5", "soon", "1e3", "٣", "9" * 400, "0" * 11 + "9" * 309])
def test_invalid_timeout_is_rejected(timeout: str) -> None:
    with pytest.raises(InputError, match="milliseconds") as caught:
        _ = RequestContext.begin("Translate", {"x-timeout-ms": timeout}).deadline
    assert caught.value.field == "x-timeout-ms"


def test_deadline_is_relative_to_request_start() -> None:
    context = RequestContext.begin("Translate", {"x-timeout-ms": "1500"})
    assert context.deadline == context.started_at + 1.5


async def test_disconnected_peer_is_recorded_as_cancelled(packages: Packages) -> None:
    """A peer without an address is not mistaken for a remote one, which would be UNAUTHENTICATED."""
    counts = Counts()
    folder = packages("bert", "fp32").package.folder
    model_server = ModelServer(ModelServerArgs(name="bert", folder=folder, settings={"threads": 1}, local=True), counts)
    try:
        with pytest.raises(FailedError, match="disconnected"):
            await model_server.endpoint.answer(DescribeRequest(), RequestContext.begin("Describe", {}, "unknown"))
    finally:
        model_server.close()
    assert counts.codes == {("Describe", "CANCELLED"): 1}
