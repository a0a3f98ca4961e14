"""Text streams and episodes, with and without failures."""

from __future__ import annotations

import grpc
import pytest

from headwaiter.client import Client, DeadlineExceeded, EpisodeLost, InvalidInput, Overloaded, Step, Unavailable
from headwaiter.client.results import Usage
from tests.echo_server_kit import EchoServer, Rejection, invalid_argument, queue_full, unavailable
from tests.service.client.conftest import IMAGE_BYTES, EpisodeRunner, StreamRunner

STREAMS = {
    "translate_stream": (("echo", "abc"), list("ABC")),
    "caption_stream": (("echo", IMAGE_BYTES), ["1", "9"]),
    "generate_stream": (("echo", "ok"), ["o", "k"]),
}


@pytest.mark.parametrize("operation", STREAMS)
def test_stream_yields_chunks_and_result(stream_text: StreamRunner, server: EchoServer, operation: str) -> None:
    args, expected = STREAMS[operation]
    chunks, result = stream_text(operation, *args, num_beams=1)
    assert chunks == expected
    assert (result.text, result.score, result.usage) == ("".join(expected), -0.5, Usage(5, 7, 1))
    assert server.requests[0].decoding.num_beams == 1
    assert result.finish_reason == "stop"
    assert stream_text(operation, *args, max_new_tokens=9)[1].finish_reason == "length"


def test_stream_failure_before_first_event_retries(stream_text: StreamRunner, server: EchoServer) -> None:
    server.rejections.append(unavailable())
    server.breaks_after.extend([0])
    assert stream_text("translate_stream", "echo", "abc")[1].text == "ABC"
    assert len(server.requests) == 3


def test_stream_failure_after_first_event_raises_unavailable(stream_text: StreamRunner, server: EchoServer) -> None:
    server.breaks_after.extend([2])
    chunks: list[str] = []
    with pytest.raises(Unavailable):
        stream_text("translate_stream", "echo", "abc", chunks=chunks)
    assert chunks == ["A", "B"]
    assert len(server.requests) == 1


def test_stream_without_done_event_raises_unavailable(stream_text: StreamRunner, server: EchoServer) -> None:
    server.omits_done = True
    with pytest.raises(Unavailable, match="closed the stream of model 'echo' before its end"):
        stream_text("generate_stream", "echo", "abc")


def test_stream_result_before_end_raises_value_error(server: EchoServer) -> None:
    with Client(server.address) as client:
        stream = client.translate_stream("echo", "abc" * 1_000_000)
        assert next(iter(stream)) == "A"
        with pytest.raises(ValueError, match="not ended"):
            _ = stream.result
        stream.close()
    assert "finished" not in server.ended


def test_episode_steps_record_history(run_episode: EpisodeRunner, server: EchoServer) -> None:
    *actions, history = run_episode([([1], None, None), ([2], 0.5, None), ([3], 1.5, 7)], greedy=False, seed=0)
    assert actions == [0, 1, 2]
    assert history == [Step((1.0,), 0, 0.5), Step((2.0,), 7, 1.5), Step((3.0,), 2, None)]
    start, first, second, third = server.requests
    assert (start.start.target_return, start.start.greedy, start.start.seed) == (40, False, 0)
    assert len(start.start.history) == 0
    assert not first.observation.HasField("reward")
    assert (second.observation.reward, third.observation.taken.discrete) == (0.5, 7)
    assert server.ended == ["closed"]


def test_episode_connection_lost_replays_history(run_episode: EpisodeRunner, server: EchoServer) -> None:
    server.rejections.append(unavailable())
    server.breaks_after.extend([2, 0, 1])
    *actions, _ = run_episode([([1], None, None), ([2], 0.5, None), ([3], 1.5, 7), ([4], 2.5, None)])
    assert actions == [0, 1, 2, 3]
    histories = [request.start.history for request in server.requests if request.HasField("start")]
    assert [len(history) for history in histories] == [0, 0, 2, 2, 3]
    last = histories[-1]
    assert [step.state[0] for step in last] == [1, 2, 3]
    assert [step.action.discrete for step in last] == [0, 7, 2]
    assert [step.reward for step in last[:2]] == [0.5, 1.5]
    assert not last[2].HasField("reward")
    assert server.requests[-1].observation.reward == 2.5


REJECTED_STEPS = {
    "invalid": (invalid_argument("state", "state has a value below 0", "0"), InvalidInput),
    "evicted": (Rejection(grpc.StatusCode.ABORTED, "evicted"), EpisodeLost),
}


@pytest.mark.parametrize("reason", REJECTED_STEPS)
def test_episode_step_rejected_continues(run_episode: EpisodeRunner, server: EchoServer, reason: str) -> None:
    server.rejected_states[-1.0], expected = REJECTED_STEPS[reason]
    *actions, history = run_episode([([1], None, None), ([-1], 0.5, None), ([2], 0.5, None)])
    assert actions == [0, expected, 1]
    assert history == [Step((1.0,), 0, 0.5), Step((2.0,), 1, None)]


def test_episode_with_history_continues_it(run_episode: EpisodeRunner) -> None:
    *actions, history = run_episode([([4], 3.0, None)], history=[Step([1], 5, 1.0), Step([2], 6)])
    assert actions == [2]
    assert history == [Step((1.0,), 5, 1.0), Step((2.0,), 6, 3.0), Step((4.0,), 2, None)]


def test_episode_start_rejected_raises_server_error(run_episode: EpisodeRunner, server: EchoServer) -> None:
    for _ in range(4):  # the rejection may cross the first observation
        server.rejections.extend([queue_full(None)] * 3)
        assert run_episode([([1], None, None)])[0] is Overloaded
        server.rejections.clear()


def test_episode_step_timeout_raises_deadline_exceeded(run_episode: EpisodeRunner, server: EchoServer) -> None:
    server.stalls = True
    assert run_episode([([1], None, None)], timeout=0.05)[0] is DeadlineExceeded
