"""What is asked and answered: everything of both kinds of clients."""

from __future__ import annotations

import inspect
import io
import pickle
import subprocess
import sys
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
    Step,
    Unauthenticated,
    Unavailable,
    WrongTask,
)
from service.client.results import Box, Hypothesis, Label, Model, ModelSummary, Timing, Usage
from tests.peer_kit import Peer, Refusal, wrong
from tests.service.client.conftest import ONE_PIXEL, Ask


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


def test_threads_share_a_client(peer: Peer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Client(peer.address) as client, ThreadPoolExecutor(8) as pool:
        texts = [str(number) for number in range(64)]
        found = pool.map(lambda text: client.translate("peer", text).text, texts)
        assert list(found) == [f"{text}!" for text in texts]


def test_large_messages(ask: Ask, peer: Peer) -> None:
    ask("detect", "peer", bytes(33 * 2**20))
    assert len(peer.requests[0].image[0].data) == 33 * 2**20
    with pytest.raises(InvalidInput, match="The request is too large for"):
        ask("detect", "peer", bytes(65 * 2**20))
    assert len(peer.requests) == 1


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
