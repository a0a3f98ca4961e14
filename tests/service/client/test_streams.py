"""Streams and episodes, whole and broken."""

from __future__ import annotations

import grpc
import pytest

from service.client import (
    Client,
    DeadlineExceeded,
    EpisodeLost,
    InvalidInput,
    Overloaded,
    Step,
    Unavailable,
)
from service.client.results import Usage
from tests.peer_kit import Peer, Refusal, full, gone, wrong
from tests.service.client.conftest import ONE_PIXEL, Steps, Streamed

STREAMS = {
    "translate_stream": (("peer", "abc"), list("ABC")),
    "caption_stream": (("peer", ONE_PIXEL), ["1", "9"]),
    "generate_stream": (("peer", "ok"), ["o", "k"]),
}


@pytest.mark.parametrize("verb", STREAMS)
def test_streams(streamed: Streamed, peer: Peer, verb: str) -> None:
    args, expected = STREAMS[verb]
    pieces, result = streamed(verb, *args, beams=1)
    assert pieces == expected
    assert (result.text, result.score, result.usage) == ("".join(expected), -0.5, Usage(5, 7, 1))
    assert peer.requests[0].decoding.beams == 1


def test_a_stream_that_has_not_begun_is_repeated(streamed: Streamed, peer: Peer) -> None:
    peer.refusals.append(gone())
    peer.breaks.extend([0])
    assert streamed("translate_stream", "peer", "abc")[1].text == "ABC"
    assert len(peer.requests) == 3


def test_a_stream_that_has_begun_is_not(streamed: Streamed, peer: Peer) -> None:
    peer.breaks.extend([2])
    heard: list[str] = []
    with pytest.raises(Unavailable):
        streamed("translate_stream", "peer", "abc", heard=heard)
    assert heard == ["A", "B"]
    assert len(peer.requests) == 1


def test_a_stream_that_ends_without_its_end(streamed: Streamed, peer: Peer) -> None:
    peer.forgets_the_end = True
    with pytest.raises(Unavailable, match="ended the stream of 'peer' too early"):
        streamed("generate_stream", "peer", "abc")


def test_a_stream_without_its_end_has_no_result(peer: Peer) -> None:
    with Client(peer.address) as client:
        stream = client.translate_stream("peer", "abc" * 1_000_000)
        assert next(iter(stream)) == "A"
        with pytest.raises(ValueError, match="not come to its end"):
            _ = stream.result
        stream.close()
    assert "finished" not in peer.ended


def test_episode(stepped: Steps, peer: Peer) -> None:
    *actions, history = stepped([([1], None, None), ([2], 0.5, None), ([3], 1.5, 7)], greedy=False, seed=0)
    assert actions == [0, 1, 2]
    assert history == [Step((1.0,), 0, 0.5), Step((2.0,), 7, 1.5), Step((3.0,), 2, None)]
    start, first, second, third = peer.requests
    assert (start.start.target_return, start.start.greedy, start.start.seed) == (40, False, 0)
    assert len(start.start.history) == 0
    assert not first.observation.HasField("reward")
    assert (second.observation.reward, third.observation.taken.discrete) == (0.5, 7)
    assert peer.ended == ["closed"]


def test_an_episode_survives_breaks(stepped: Steps, peer: Peer) -> None:
    peer.refusals.append(gone())
    peer.breaks.extend([2, 0, 1])
    *actions, _ = stepped([([1], None, None), ([2], 0.5, None), ([3], 1.5, 7), ([4], 2.5, None)])
    assert actions == [0, 1, 2, 3]
    replays = [each.start.history for each in peer.requests if each.HasField("start")]
    assert [len(each) for each in replays] == [0, 0, 2, 2, 3]
    last = replays[-1]
    assert [step.state[0] for step in last] == [1, 2, 3]
    assert [step.action.discrete for step in last] == [0, 7, 2]
    assert [step.reward for step in last[:2]] == [0.5, 1.5]
    assert not last[2].HasField("reward")
    assert peer.requests[-1].observation.reward == 2.5


REFUSED_STEPS = {
    "wrong": (wrong("state", "state has a value below 0", "0"), InvalidInput),
    "evicted": (Refusal(grpc.StatusCode.ABORTED, "evicted"), EpisodeLost),
}


@pytest.mark.parametrize("why", REFUSED_STEPS)
def test_an_episode_goes_on_after_a_refusal(stepped: Steps, peer: Peer, why: str) -> None:
    peer.refused_states[-1.0], expected = REFUSED_STEPS[why]
    *actions, history = stepped([([1], None, None), ([-1], 0.5, None), ([2], 0.5, None)])
    assert actions == [0, expected, 1]
    assert history == [Step((1.0,), 0, 0.5), Step((2.0,), 1, None)]


def test_an_episode_goes_on_in_another(stepped: Steps) -> None:
    *actions, history = stepped([([4], 3.0, None)], history=[Step([1], 5, 1.0), Step([2], 6)])
    assert actions == [2]
    assert history == [Step((1.0,), 5, 1.0), Step((2.0,), 6, 3.0), Step((4.0,), 2, None)]


def test_a_refused_start_is_told_as_it_was(stepped: Steps, peer: Peer) -> None:
    """Also where the refusal and the first observation cross each other."""
    for _ in range(4):
        peer.refusals.extend([full(None)] * 3)
        assert stepped([([1], None, None)])[0] is Overloaded
        peer.refusals.clear()


def test_a_step_ends_in_time(stepped: Steps, peer: Peer) -> None:
    peer.stalls = True
    assert stepped([([1], None, None)], timeout=0.05)[0] is DeadlineExceeded
