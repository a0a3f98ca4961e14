"""What is asked again, where, and for how long."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from service.client import (
    NO_RETRIES,
    AsyncClient,
    Client,
    DeadlineExceeded,
    HeadwaiterError,
    Overloaded,
    Retries,
    Unavailable,
)
from tests.peer_kit import Peer, Refusal, full, gone, wrong
from tests.service.client.conftest import QUICK, Ask, Steps


def test_unavailable_is_repeated(ask: Ask, peer: Peer) -> None:
    peer.refusals.extend([gone(), gone()])
    assert ask("translate", "peer", "a").text == "a!"
    assert len(peer.requests) == 3
    assert len({each["x-request-id"] for each in peer.metadata}) == 1


def test_a_proxy_that_lost_its_replica_is_asked_again(ask: Ask, peer: Peer) -> None:
    peer.refusals.append(Refusal(grpc.StatusCode.UNKNOWN, "Received http2 header with status: 500"))
    assert ask("translate", "peer", "a").text
    peer.refusals.append(Refusal(grpc.StatusCode.UNKNOWN, "something else"))
    with pytest.raises(HeadwaiterError, match="something else"):
        ask("translate", "peer", "a")


def test_attempts_come_to_an_end(ask: Ask, peer: Peer) -> None:
    peer.refusals.extend([gone()] * 9)
    with pytest.raises(ConnectionError, match="draining"):
        ask("translate", "peer", "a")
    assert len(peer.requests) == QUICK.attempts


def test_other_refusals_are_not_repeated(ask: Ask, peer: Peer) -> None:
    for refusal in (wrong("text", "too long"), full(None), Refusal(grpc.StatusCode.INTERNAL)):
        peer.refusals.append(refusal)
        with pytest.raises(HeadwaiterError):
            ask("translate", "peer", "a")
    assert len(peer.requests) == 3


def test_a_full_queue_is_asked_again_when_it_says_so(ask: Ask, peer: Peer) -> None:
    peer.refusals.append(full(0.01))
    assert ask("translate", "peer", "a").text == "a!"
    peer.refusals.append(full(5.0))
    with pytest.raises(Overloaded) as caught:
        ask("translate", "peer", "a", timeout=1.0)
    assert caught.value.retry_after == 5.0
    assert len(peer.requests) == 3


def test_the_budget_is_shared_and_earned_back(peer: Peer) -> None:
    retries = Retries(first_wait=0.001, longest_wait=0.001, attempts=3, budget=2, earned=0.5)
    with Client(peer.address, retries=retries) as client:
        for attempts in (3, 1, 1):
            peer.requests.clear()
            peer.refusals.extend([gone()] * attempts)
            with pytest.raises(Unavailable):
                client.translate("peer", "a")
            assert len(peer.requests) == attempts
        client.translate("peer", ["a"])
        client.translate("peer", ["a"])
        peer.refusals.append(gone())
        assert client.translate("peer", "back").text == "back!"


def test_nobody_there(ask: Ask, peer: Peer) -> None:
    peer.address = "127.0.0.1:1"
    with pytest.raises(Unavailable, match=r"^127\.0\.0\.1:1 is unavailable: .*refused"):
        ask("models")


def test_the_next_of_several_addresses_is_used(peer: Peer, kind: str) -> None:
    nobody, there = "ipv4:127.0.0.1:1", peer.address
    if kind == "sync":
        with Client(f"{nobody},{there}", retries=NO_RETRIES) as client:
            assert client.translate("peer", "a").text == "a!"
        return

    async def ask() -> str:
        async with AsyncClient(f"{nobody},{there}", retries=NO_RETRIES) as client:
            return (await client.translate("peer", "a")).text

    assert asyncio.run(ask()) == "a!"


def test_silence_is_not_waited_for_to_the_end(ask: Ask, peer: Peer) -> None:
    """Who had the call may be cut off. A second silence is: the call may rightly take long."""
    peer.silences = 1
    assert ask("translate", "peer", "a", timeout=1.2, request_id="mine").text == "a!"
    assert [each["x-request-id"] for each in peer.metadata] == ["mine", "mine"]
    peer.silences = 2
    with pytest.raises(DeadlineExceeded):
        ask("translate", "peer", "a", timeout=1.2)
    assert len(peer.requests) == 4
    peer.silences = 1
    with pytest.raises(DeadlineExceeded):  # too short for a second attempt
        ask("translate", "peer", "a", timeout=0.8)
    assert len(peer.requests) == 5
    peer.silences = 1
    with pytest.raises(DeadlineExceeded):  # a call may rightly take long, unless the caller says otherwise
        ask("translate", "peer", "a", timeout=1.2, terms={"retries": Retries()})
    assert len(peer.requests) == 6


def test_an_episode_leaves_a_silent_replica(stepped: Steps, peer: Peer) -> None:
    peer.silences = 1
    *actions, _ = stepped([([1.0], None, None), ([2.0], 0.5, None)], timeout=1.2)
    assert actions == [0, 1]
    assert [each.start.target_return for each in peer.requests if each.HasField("start")] == [40, 40]


def test_a_call_ends_in_time(ask: Ask, peer: Peer) -> None:
    peer.stalls = True
    with pytest.raises(TimeoutError, match="did not answer for 'peer' in time"):
        ask("translate", "peer", "a", timeout=0.05)
    with pytest.raises(DeadlineExceeded):
        ask("translate", "peer", "a", terms={"timeout": 0.05})
    assert len(peer.requests) == 2
