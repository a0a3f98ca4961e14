"""The clients beside a server that echoes: everything is asked of both."""

from __future__ import annotations

import asyncio
import inspect
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

from service.client import (
    NO_RETRIES,
    AsyncClient,
    Client,
    DeadlineExceeded,
    EpisodeLost,
    HeadwaiterError,
    History,
    InternalError,
    InvalidInput,
    NotFound,
    Overloaded,
    Retries,
    Step,
    Unauthenticated,
    Unavailable,
    WrongTask,
)
from service.client.results import Box, Hypothesis, Label, Model, ModelSummary, Timing, Usage
from tests.peer_kit import Peer, Refusal, full, gone, serving, wrong

QUICK = Retries(first_wait=0.001, longest_wait=0.002, patience=0.5)
ONE_PIXEL = b"not really an image"

Ask = Callable[..., Any]
Streamed = Callable[..., tuple[list[str], Any]]
Steps = Callable[..., list[Any]]


@pytest.fixture
def peer() -> Iterator[Peer]:
    with serving(Peer()) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(kind: str, peer: Peer) -> Ask:
    def sync(verb: str, *args: Any, terms: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        with Client(peer.address, **{"retries": QUICK, **(terms or {})}) as client:
            return getattr(client, verb)(*args, **kwargs)

    async def coroutine(verb: str, *args: Any, terms: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        async with AsyncClient(peer.address, **{"retries": QUICK, **(terms or {})}) as client:
            return await getattr(client, verb)(*args, **kwargs)

    return sync if kind == "sync" else lambda *args, **kwargs: asyncio.run(coroutine(*args, **kwargs))


@pytest.fixture
def streamed(kind: str, peer: Peer) -> Streamed:
    def sync(verb: str, *args: Any, heard: list[str], **kwargs: Any) -> Any:
        with Client(peer.address, retries=QUICK) as client:
            stream = getattr(client, verb)(*args, **kwargs)
            heard.extend(stream)
            return stream.result

    async def coroutine(verb: str, *args: Any, heard: list[str], **kwargs: Any) -> Any:
        async with AsyncClient(peer.address, retries=QUICK) as client:
            stream = getattr(client, verb)(*args, **kwargs)
            async for piece in stream:
                heard.append(piece)
            return stream.result

    def run(verb: str, *args: Any, heard: list[str] | None = None, **kwargs: Any) -> tuple[list[str], Any]:
        pieces: list[str] = [] if heard is None else heard
        if kind == "sync":
            return pieces, sync(verb, *args, heard=pieces, **kwargs)
        return pieces, asyncio.run(coroutine(verb, *args, heard=pieces, **kwargs))

    return run


@pytest.fixture
def stepped(kind: str, peer: Peer) -> Steps:
    """The actions of an episode; an error stands in for an action."""

    def sync(steps: list[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        answers: list[Any] = []
        with (
            Client(peer.address, retries=QUICK) as client,
            client.episode("peer", target_return=40, **kwargs) as episode,
        ):
            for state, reward, taken in steps:
                try:
                    answers.append(episode.step(state, reward, taken=taken).discrete)
                except HeadwaiterError as error:
                    answers.append(type(error))
            return [*answers, episode.history]

    async def coroutine(steps: list[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        answers: list[Any] = []
        async with (
            AsyncClient(peer.address, retries=QUICK) as client,
            client.episode("peer", target_return=40, **kwargs) as episode,
        ):
            for state, reward, taken in steps:
                try:
                    answers.append((await episode.step(state, reward, taken=taken)).discrete)
                except HeadwaiterError as error:
                    answers.append(type(error))
            return [*answers, episode.history]

    return sync if kind == "sync" else lambda *args, **kwargs: asyncio.run(coroutine(*args, **kwargs))


def test_translate_one(ask: Ask, peer: Peer) -> None:
    found = ask("translate", "zh-en", "你好", best=2, beams=2, target_language="en", split=False)
    assert (found.text, found.score) == ("你好!", -0.25)
    assert found.hypotheses == (Hypothesis("你好!", -0.25), Hypothesis("你好!?", -0.5))
    assert found.sentences == (Hypothesis("你好!", -0.25),)
    assert (found.model, found.usage, found.timing) == (Model("peer", "3"), Usage(5, 7, 1), Timing(0.5, 1.5, 2.5))
    (request,) = peer.requests
    assert list(request.text) == ["你好"]
    assert {field.name for field, _ in request.decoding.ListFields()} == {"best", "beams"}
    assert (request.target_language, request.split) == ("en", False)
    assert request.HasField("split")
    assert not request.HasField("source_language")


def test_translate_many(ask: Ask, peer: Peer) -> None:
    assert [each.text for each in ask("translate", "zh-en", ["a", "b"])] == ["a!", "b!"]
    assert [each.text for each in ask("translate", "zh-en", ("c",))] == ["c!"]
    assert ask("translate", "zh-en", []) == []
    assert not peer.requests[0].HasField("decoding")


def test_images_in_every_form(ask: Ask, peer: Peer, tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.new("RGB", (4, 3), "red").save(path)
    content = path.read_bytes()
    pil = Image.new("CMYK", (4, 3))
    given = [str(path), path, content, io.BytesIO(content), pil]
    found = ask("caption", "peer", given, prompt="a: ", max_new_tokens=5)
    assert [each.text for each in found[:4]] == [f"a: {len(content)} bytes!"] * 4
    *plain, saved = [each.data for each in peer.requests[0].image]
    assert plain == [content] * 4
    assert Image.open(io.BytesIO(saved)).size == (4, 3)
    with pytest.raises(InvalidInput, match="image is a float"):
        ask("detect", "peer", 1.5)
    with pytest.raises(FileNotFoundError):
        ask("detect", "peer", tmp_path / "missing.png")


def test_classify(ask: Ask, peer: Peer) -> None:
    assert ask("classify", "peer", text="a").labels == (Label("text", 1, 0.75),)
    assert ask("classify", "peer", text=("a", "b"), top_k=2).labels[0].name == "text_pair"
    both = ask("classify", "peer", text=["a", ("b", "c")], threshold=0.0)
    assert [each.labels[0].name for each in both] == ["text", "text_pair"]
    assert ask("classify", "peer", image=[ONE_PIXEL])[0].labels[0].name == "image"
    assert peer.requests[1].top_k == 2
    assert peer.requests[2].HasField("threshold")
    assert (peer.requests[2].input[1].text_pair.first, peer.requests[2].input[1].text_pair.second) == ("b", "c")
    for nothing in ({}, {"text": "a", "image": ONE_PIXEL}):
        with pytest.raises(InvalidInput, match="one of the two"):
            ask("classify", "peer", **nothing)


def test_detect(ask: Ask, peer: Peer) -> None:
    found = ask("detect", "peer", ONE_PIXEL, threshold=0.25, max_boxes=3)
    assert (found.width, found.height) == (40, 30)
    assert found.boxes == (Box("cat[1]", 4, 0.875, 2, 3, 30, 20),)
    assert (peer.requests[0].threshold, peer.requests[0].max_boxes) == (0.25, 3)


def test_act(ask: Ask, peer: Peer) -> None:
    history = History([Step(np.zeros(2, np.float32), 1, 0.5), Step((1, 2), [0.5, -0.5], 0), Step([3.0, 4.0])], 40)
    found = ask("act", "peer", history, greedy=False, seed=0)
    assert (found.discrete, found.continuous, found.scores) == (3, None, (0.25, 0.75))
    assert [each.discrete for each in ask("act", "peer", [history, History([], 1)])] == [3, 0]
    (sent,) = peer.requests[0].history
    assert sent.target_return == 40
    assert [step.action.WhichOneof("choice") for step in sent.steps] == ["discrete", "continuous", None]
    assert [step.HasField("reward") for step in sent.steps] == [True, True, False]
    assert peer.requests[0].HasField("seed")


def test_generate_models_describe(ask: Ask, peer: Peer) -> None:
    assert ask("generate", "peer", "once").text == "once!"
    assert ask("generate_images", "peer", count=2, seed=7).images == (b"\0", b"\1")
    assert ask("models") == [ModelSummary("peer", "translation", "3", True)]
    described = ask("describe", "peer")
    assert (described.limits, described.labels) == ({"text": 20_000}, ("cat", "dog"))
    assert (described.state_size, described.action_size, described.action_kind) == (17, 6, "continuous")
    assert described.languages is None
    assert described.decoding == {"beams": 4, "early_stopping": False, "length_penalty": 0.5}
    assert [each["application"] for each in peer.metadata] == ["peer", "peer", "catalog", "peer"]


def test_metadata(ask: Ask, peer: Peer) -> None:
    ask("translate", "zh-en", "a", request_id="mine", terms={"key": "secret"})
    ask("translate", "zh-en", "a")
    ask("translate", "zh-en", "a")
    first, second, third = peer.metadata
    assert (first["application"], first["authorization"], first["x-request-id"]) == ("zh-en", "Bearer secret", "mine")
    assert "authorization" not in second
    assert len({second["x-request-id"], third["x-request-id"]}) == 2


NOT_SENT: dict[str, tuple[dict[str, Any], str]] = {
    "decoding.beams": ({"beams": "4"}, "decoding.beams is '4', which cannot be sent"),
    "decoding.top_k": ({"top_k": 2**40}, "decoding.top_k is 1099511627776"),
    "text[1]": ({"text": ["a", "b\ud800"]}, "text[1] is 'b\\ud800'"),
    "text[0]": ({"text": [None]}, "text[0] is None"),
    "model": ({"model": "模型"}, "model has characters"),
    "request_id": ({"request_id": "a\nb"}, "request_id has characters"),
}


@pytest.mark.parametrize("field", NOT_SENT)
def test_what_cannot_be_sent(ask: Ask, peer: Peer, field: str) -> None:
    given, sentence = NOT_SENT[field]
    with pytest.raises(InvalidInput) as caught:
        ask("translate", **{"model": "peer", "text": "a", **given})
    assert sentence in str(caught.value)
    assert (caught.value.field, caught.value.code) == (field, "INVALID_ARGUMENT")
    assert peer.requests == []


def test_an_unknown_way_of_decoding(ask: Ask) -> None:
    with pytest.raises(TypeError, match="beans is no way of decoding; there are max_new_tokens, beams,"):
        ask("translate", "peer", "a", beans=3)


KINDS = {
    "UNAUTHENTICATED": Unauthenticated,
    "NOT_FOUND": NotFound,
    "UNIMPLEMENTED": WrongTask,
    "RESOURCE_EXHAUSTED": Overloaded,
    "ABORTED": EpisodeLost,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNAVAILABLE": Unavailable,
    "INTERNAL": InternalError,
    "DATA_LOSS": HeadwaiterError,
}


@pytest.mark.parametrize("code", KINDS)
def test_errors_by_code(ask: Ask, peer: Peer, code: str) -> None:
    peer.refusals.append(Refusal(grpc.StatusCode[code], "the words"))
    with pytest.raises(HeadwaiterError) as caught:
        ask("translate", "zh-en", "a", request_id="mine", terms={"retries": NO_RETRIES})
    assert type(caught.value) is KINDS[code]
    assert (caught.value.code, caught.value.request_id) == (code, "mine")
    assert caught.value.message == {
        "NOT_FOUND": f"{peer.address} serves no model 'zh-en'.",
        "DEADLINE_EXCEEDED": f"{peer.address} did not answer for 'zh-en' in time.",
        "UNAVAILABLE": f"{peer.address} is unavailable: the words",
    }.get(code, "the words")


def test_error_details(ask: Ask, peer: Peer) -> None:
    sentence = "text[2] has 61,000 characters; the limit is 20,000"
    peer.refusals.append(wrong("text[2]", sentence, "20000"))
    with pytest.raises(ValueError, match="61,000") as caught:
        ask("translate", "peer", "a")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert isinstance(error, InvalidInput)
        assert (str(error), error.field, error.limit) == (sentence, "text[2]", 20_000)
        assert (error.code, error.request_id) == ("INVALID_ARGUMENT", "of-the-server")
    peer.refusals.append(wrong("threshold", "threshold is 2", "0.5"))
    with pytest.raises(InvalidInput) as caught_again:
        ask("detect", "peer", ONE_PIXEL)
    assert caught_again.value.limit == 0.5


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


def test_threads_share_a_client(peer: Peer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Client(peer.address) as client, ThreadPoolExecutor(8) as pool:
        texts = [str(number) for number in range(64)]
        found = pool.map(lambda text: client.translate("peer", text).text, texts)
        assert list(found) == [f"{text}!" for text in texts]


def test_large_messages(ask: Ask, peer: Peer) -> None:
    ask("detect", "peer", bytes(33 * 2**20))
    assert len(peer.requests[0].image[0].data) == 33 * 2**20


def test_both_have_the_same_verbs_with_their_signatures() -> None:
    verbs = {name for name, value in vars(Client).items() if hasattr(value, "__wrapped__")}
    assert verbs == {name for name, value in vars(AsyncClient).items() if hasattr(value, "__wrapped__")}
    assert len(verbs) == 13
    for name in verbs:
        assert inspect.signature(getattr(Client, name)) == inspect.signature(getattr(AsyncClient, name))
    assert list(inspect.signature(Client("x").translate).parameters)[:2] == ["model", "text"]
    assert "Translates a text" in (Client.translate.__doc__ or "")


def test_import_needs_nothing_of_the_service() -> None:
    """In a process where importing anything else fails."""
    blocked = ["numpy", "pydantic", "ray", "PIL", "typer", "rich", "onnxruntime", "tokenizers", "torch", "grpc_tools"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); from service.client import AsyncClient, Client"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
