"""Which calls are retried, how often and within which deadline."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from headwaiter.client import (
    NO_RETRIES,
    AsyncClient,
    Client,
    DeadlineExceeded,
    HeadwaiterError,
    Overloaded,
    RetryPolicy,
    Unavailable,
)
from tests.echo_server_kit import EchoServer, Rejection, invalid_argument, queue_full, unavailable
from tests.service.client.conftest import QUICK, Caller, EpisodeRunner


def test_call_unavailable_retries_with_same_request_id(call: Caller, server: EchoServer) -> None:
    server.rejections.extend([unavailable(), unavailable()])
    assert call("translate", "echo", "a").text == "a!"
    assert len(server.requests) == 3
    assert len({metadata["x-request-id"] for metadata in server.metadata}) == 1


def test_call_proxy_error_500_retries(call: Caller, server: EchoServer) -> None:
    server.rejections.append(Rejection(grpc.StatusCode.UNKNOWN, "Received http2 header with status: 500"))
    assert call("translate", "echo", "a").text
    server.rejections.append(Rejection(grpc.StatusCode.UNKNOWN, "something else"))
    with pytest.raises(HeadwaiterError, match="something else"):
        call("translate", "echo", "a")


def test_call_always_unavailable_stops_after_max_attempts(call: Caller, server: EchoServer) -> None:
    server.rejections.extend([unavailable()] * 9)
    with pytest.raises(ConnectionError, match="draining"):
        call("translate", "echo", "a")
    assert len(server.requests) == QUICK.max_attempts


def test_call_other_rejections_not_retried(call: Caller, server: EchoServer) -> None:
    for rejection in (invalid_argument("text", "too long"), queue_full(None), Rejection(grpc.StatusCode.INTERNAL)):
        server.rejections.append(rejection)
        with pytest.raises(HeadwaiterError):
            call("translate", "echo", "a")
    assert len(server.requests) == 3


def test_call_queue_full_retries_after_server_delay(call: Caller, server: EchoServer) -> None:
    server.rejections.append(queue_full(0.01))
    assert call("translate", "echo", "a").text == "a!"
    server.rejections.append(queue_full(5.0))
    with pytest.raises(Overloaded) as caught:
        call("translate", "echo", "a", timeout=1.0)
    assert caught.value.retry_after == 5.0
    assert len(server.requests) == 3


def test_retry_budget_used_up_replenished_by_successes(server: EchoServer) -> None:
    retries = RetryPolicy(initial_backoff=0.001, max_backoff=0.001, max_attempts=3, budget=2, budget_per_success=0.5)
    with Client(server.address, retries=retries) as client:
        for attempts in (3, 1, 1):
            server.requests.clear()
            server.rejections.extend([unavailable()] * attempts)
            with pytest.raises(Unavailable):
                client.translate("echo", "a")
            assert len(server.requests) == attempts
        client.translate("echo", ["a"])
        client.translate("echo", ["a"])
        server.rejections.append(unavailable())
        assert client.translate("echo", "back").text == "back!"


def test_call_unreachable_address_raises_unavailable(call: Caller, server: EchoServer) -> None:
    server.address = "127.0.0.1:1"
    with pytest.raises(Unavailable, match=r"^127\.0\.0\.1:1 is unavailable: .*refused"):
        call("models")


def test_client_several_addresses_uses_first_reachable(server: EchoServer, client_kind: str) -> None:
    addresses = f"ipv4:127.0.0.1:1,{server.address}"
    if client_kind == "sync":
        with Client(addresses, retries=NO_RETRIES) as client:
            assert client.translate("echo", "a").text == "a!"
        return

    async def translate() -> str:
        async with AsyncClient(addresses, retries=NO_RETRIES) as client:
            return (await client.translate("echo", "a")).text

    assert asyncio.run(translate()) == "a!"


@pytest.mark.slow
def test_call_without_response_abandoned_while_half_the_time_remains(call: Caller, server: EchoServer) -> None:
    server.unanswered_calls = 1
    assert call("translate", "echo", "a", timeout=1.2, request_id="mine").text == "a!"
    assert [metadata["x-request-id"] for metadata in server.metadata] == ["mine", "mine"]
    server.unanswered_calls = 2
    with pytest.raises(DeadlineExceeded):  # too little time is left for a timeout of the second attempt
        call("translate", "echo", "a", timeout=1.2)
    assert len(server.requests) == 4
    server.unanswered_calls = 2
    assert call("translate", "echo", "a", timeout=2.4).text == "a!"
    assert len(server.requests) == 7
    server.unanswered_calls = 1
    with pytest.raises(DeadlineExceeded):  # the attempt timeout exceeds half of the call's
        call("translate", "echo", "a", timeout=0.8)
    assert len(server.requests) == 8
    server.unanswered_calls = 1
    with pytest.raises(DeadlineExceeded):  # no attempt timeout by default
        call("translate", "echo", "a", timeout=1.2, client_options={"retries": RetryPolicy()})
    assert len(server.requests) == 9


def test_episode_without_response_moves_to_new_stream(run_episode: EpisodeRunner, server: EchoServer) -> None:
    server.unanswered_calls = 1
    *actions, _ = run_episode([([1.0], None, None), ([2.0], 0.5, None)], timeout=1.2)
    assert actions == [0, 1]
    assert [request.start.target_return for request in server.requests if request.HasField("start")] == [40, 40]


def test_call_timeout_raises_deadline_exceeded(call: Caller, server: EchoServer) -> None:
    server.stalls = True
    with pytest.raises(TimeoutError, match="did not respond for model 'echo' before the deadline"):
        call("translate", "echo", "a", timeout=0.05)
    with pytest.raises(DeadlineExceeded):
        call("translate", "echo", "a", client_options={"timeout": 0.05})
    assert len(server.requests) == 2
