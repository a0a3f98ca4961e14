from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from service.calls import add_commands
from service.calls.drawing import colour, draw_boxes, ink
from service.client.results import Box, Detected, Model, Timing, Usage
from tests.peer_kit import Peer, Refusal, serving, wrong

HEADWAITER = Path(sys.executable).with_name("headwaiter")
ACCOUNT = {
    "model": {"name": "peer", "version": "3"},
    "usage": {"input_tokens": 5, "output_tokens": 7, "images": 1},
    "timing": {"queue_ms": 0.5, "prepare_ms": 1.5, "run_ms": 2.5},
}


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    with serving(Peer()) as running:
        monkeypatch.setenv("HEADWAITER_ADDRESS", running.address)
        yield running


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "scene.png"
    Image.new("RGB", (40, 30), "white").save(path)
    return path


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


def _run(*arguments: object, piped: str | None = None) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_commands(app)
    return CliRunner().invoke(app, ["call", "peer", *map(str, arguments)], input=piped)


def _json(*arguments: object, piped: str | None = None) -> Any:
    result = _run(*arguments, "--json", piped=piped)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_texts_come_back_as_they_are() -> None:
    """Nothing around them in a pipe; brackets are no markup, colons no emoji, long lines stay lines."""
    text = "[bold]red[/] [x] :smile: " + "word " * 60
    with serving(Peer()) as running:
        result = _run("translate", text, "two", "--address", running.address)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{text}!\ntwo!\n"


def test_options_are_the_fields(peer: Peer) -> None:
    options = ["--beams", 4, "--best", 2, "--length-penalty", 0.5, "--early-stopping", "--no-sample", "--top-k", 0]
    more = ["--source-language", "zh", "--target-language", "en", "--no-split"]
    assert _run("translate", "a", *options, *more).exit_code == 0
    (request,) = peer.requests
    stated = {field.name: value for field, value in request.decoding.ListFields()}
    assert stated == {
        "beams": 4,
        "best": 2,
        "length_penalty": 0.5,
        "early_stopping": True,
        "sample": False,
        "top_k": 0,
    }
    assert (request.source_language, request.target_language, request.split) == ("zh", "en", False)


@pytest.mark.usefixtures("peer")
def test_json_has_the_names_of_the_protocol() -> None:
    assert _json("translate", "你好") == {
        "results": [
            {"hypotheses": [{"text": "你好!", "score": -0.25}], "sentences": [{"text": "你好!", "score": -0.25}]}
        ],
        **ACCOUNT,
    }
    action = {"discrete": 1, "scores": [0.25, 0.75]}
    assert _json("act", "[0.5, -1]", "--target-return", 40) == {"results": [action], **ACCOUNT}
    described = _json("describe")
    assert (described["limits"], described["state_size"]) == ({"text": 20_000}, 17)
    assert described["decoding"] == {"beams": 4, "early_stopping": False, "length_penalty": 0.5}
    assert "languages" not in described


def test_from_standard_input(peer: Peer) -> None:
    assert _run("translate", piped="one\n\ntwo\n").stdout == "one\n\ntwo!\n"
    assert _run("generate", piped="once\n").stdout == "once!\n"
    for nothing in ("", "\n"):
        refused = _run("generate", piped=nothing)
        assert refused.exit_code == 2
        assert "prompt is missing; give it as an argument or through standard input" in refused.stderr
    assert len(peer.requests) == 2


def test_streams(peer: Peer) -> None:
    assert _run("translate", "abc", "--stream").stdout == "ABC\n"
    assert _run("generate", "[b]", "--stream", "--beams", 1).stdout == "[b]\n"
    events = [json.loads(line) for line in _run("translate", "ab", "--stream", "--json").stdout.splitlines()]
    assert events == [{"delta": "A"}, {"delta": "B"}, {"done": {"text": "AB", "score": -0.5, **ACCOUNT}}]
    refused = _run("translate", "a", "b", "--stream")
    assert refused.exit_code == 2
    assert "text is 2 of them; with --stream it is one" in refused.stderr
    assert len(peer.requests) == 3


def test_caption(peer: Peer, picture: Path) -> None:
    size = picture.stat().st_size
    assert _run("caption", picture, picture, "--prompt", "a ").stdout == f"a {size} bytes!\n" * 2
    assert _run("caption", picture, "--stream").stdout == f"{size}\n"
    assert peer.requests[0].image[0].data == picture.read_bytes()


def test_classify(peer: Peer, picture: Path) -> None:
    assert "0.750" in _run("classify", "good", "--top-k", 3, "--threshold", 0.5).stdout
    found = _json("classify", "good", "bad", "--second", "why")
    assert [each["labels"] for each in found["results"]] == [[{"name": "text_pair", "index": 1, "score": 0.75}]] * 2
    assert _json("classify", "--image", picture)["results"][0]["labels"][0]["name"] == "image"
    assert (peer.requests[0].top_k, peer.requests[0].threshold) == (3, 0.5)
    assert _run("classify", "a", "--image", picture).exit_code == 2


def test_detect_and_draw(peer: Peer, picture: Path, tmp_path: Path) -> None:
    target = tmp_path / "found.jpg"
    result = _run("detect", picture, "--threshold", 0.25, "--max-boxes", 9, "--save", target)
    assert result.exit_code == 0, result.output
    for word in ("cat[1]", "0.875", "30", "20", "1 found in 40 x 30 pixels"):
        assert word in result.stdout
    drawn = Image.open(target)
    assert drawn.size == (40, 30)
    assert drawn.convert("L").histogram()[255] < 40 * 30
    assert (peer.requests[0].threshold, peer.requests[0].max_boxes) == (0.25, 9)


def test_act_with_a_history(peer: Peer) -> None:
    steps = [{"state": [1, 0], "action": {"discrete": 2}, "reward": 1}, {"state": [0, 1]}]
    given = json.dumps({"steps": steps, "target_return": 40})
    assert _run("act", given, "--no-greedy", "--seed", 0).exit_code == 0
    vector = json.dumps({"steps": [{"state": [1], "action": {"continuous": {"values": [0.5]}}}], "target_return": 1})
    assert _run("act", piped=vector).exit_code == 0
    (first,), (second,) = (request.history for request in peer.requests)
    assert [list(step.state) for step in first.steps] == [[1, 0], [0, 1]]
    assert (first.steps[0].action.discrete, first.steps[0].reward, first.target_return) == (2, 1, 40)
    assert not first.steps[1].HasField("action")
    assert list(second.steps[0].action.continuous.values) == [0.5]
    assert (peer.requests[0].greedy, peer.requests[0].HasField("seed")) == (False, True)


@pytest.mark.usefixtures("terminal", "peer")
def test_a_terminal_gets_more(picture: Path) -> None:
    translated = _run("translate", "[a]", "--best", 2, "--beams", 2).stdout
    for word in ("[a]!?", "-0.500", "peer version 3", "5 tokens read, 7 written", "4 ms", "\x1b["):
        assert word in translated
    assert "peer version 3" in _run("translate", "a", "--stream").stdout
    assert "██" in _run("classify", "a").stdout
    assert "██" in _run("act", "[1]", "--target-return", 1).stdout
    assert "cat[1]" in _run("detect", picture).stdout
    for word in ("policy", "text 20,000", "2: cat, dog", "of 17 numbers", "continuous, of 6", "beams 4", "MIT"):
        assert word in _run("describe").stdout


def test_key(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("translate", "a", "--key", "given")
    monkeypatch.setenv("HEADWAITER_KEY", "kept")
    _run("translate", "a")
    assert [each["authorization"] for each in peer.metadata] == ["Bearer given", "Bearer kept"]


REFUSALS: dict[str, tuple[Refusal, int, str]] = {
    "input": (wrong("text[0]", "text[0] has [5] characters", "4"), 2, "text[0] has [5] characters"),
    "key": (Refusal(grpc.StatusCode.UNAUTHENTICATED, "no key"), 2, "no key"),
    "model": (Refusal(grpc.StatusCode.NOT_FOUND, "?"), 2, "serves no model 'peer'."),
    "task": (Refusal(grpc.StatusCode.UNIMPLEMENTED, "peer detects"), 2, "peer detects"),
    "full": (Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full"), 1, "queue full"),
    "bug": (Refusal(grpc.StatusCode.INTERNAL, "request 1 failed"), 1, "request 1 failed"),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_the_service_refuses(peer: Peer, why: str) -> None:
    refusal, code, sentence = REFUSALS[why]
    peer.refusals.append(refusal)
    result = _run("translate", "a", "--json")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("✗ ")
    assert result.stderr.endswith(f"{sentence}\n")
    assert result.stderr.count("\n") == 1


def test_a_broken_stream_says_so_after_what_came(peer: Peer) -> None:
    peer.breaks.append(2)
    result = _run("translate", "abc", "--stream")
    assert (result.exit_code, result.stdout) == (1, "AB")
    assert "is unavailable: draining" in result.stderr


MISTAKES: dict[str, tuple[list[str], str]] = {
    "missing file": (["detect", "no-such.png"], "no-such.png cannot be used: No such file or directory."),
    "several to draw": (["detect", "a.png", "b.png", "--save", "c.png"], "image is 2 of them; with --save it is one"),
    "no image name": (["detect", "a.png", "--save", "c.text"], "c.text does not end like an image; .png and .jpg do"),
    "no folder": (["detect", "a.png", "--save", "no/c.png"], "no/c.png cannot be written; its folder is not there"),
    "no folder for images": (["generate-images", "--save", "no/a.png"], "no/a.png cannot be written; its folder"),
    "no numbers": (["act", '["[b]"]'], "history does not have its form"),
    "not JSON": (["act", "[1"], "history is not JSON"),
    "no history": (["act", '{"stops": []}'], "history does not have its form"),
    "neither": (["act", "3"], "history is 3; it is a list of numbers or an object with steps"),
    "no target": (["act", "[1]"], "target_return is missing; it is the sum of rewards to aim for"),
    "key": (["translate", "a", "--key", "ü"], "key has characters that cannot be sent in a header"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(peer: Peer, mistake: str) -> None:
    arguments, sentence = MISTAKES[mistake]
    result = _run(*arguments)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert peer.requests == []


def test_help_shows_examples() -> None:
    assert "headwaiter call opus-mt-zh-en translate" in _run("--help").stdout
    for verb in ("translate", "caption", "classify", "detect", "act", "generate", "generate-images"):
        shown = _run(verb, "--help").stdout
        assert "Examples:" in shown
        assert f" {verb} " in shown.split("Examples:")[1]
        assert "--address" in shown


def test_real_command(peer: Peer) -> None:
    """One process as users start it, with a pipe on both sides."""
    command = [str(HEADWAITER), "call", "peer", "translate", "--json"]
    environment = {**os.environ, "HEADWAITER_ADDRESS": peer.address}
    finished = subprocess.run(command, input="你好\n", capture_output=True, text=True, env=environment, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["results"][0]["hypotheses"][0]["text"] == "你好!"


def test_drawing(tmp_path: Path) -> None:
    """Edges in the class's colour, a label that stays inside of the picture."""
    source, target = tmp_path / "in.png", tmp_path / "out.png"
    Image.new("RGBA", (200, 100), "white").save(source)
    boxes = (Box("first", 0, 0.9, 40, 50, 120, 90), Box("at the edge", 1, 0.6, 190, 0, 200, 10))
    account = {"model": Model("m", "1"), "usage": Usage(0, 0, 1), "timing": Timing(0, 0, 0)}
    draw_boxes(source, Detected(width=200, height=100, boxes=boxes, **account), target)  # type: ignore[arg-type]
    drawn = Image.open(target)
    assert drawn.getpixel((40, 70)) == colour(0)
    assert drawn.getpixel((80, 70)) == (255, 255, 255)
    assert drawn.getpixel((199, 11)) == colour(1)


def test_labels_are_legible() -> None:
    """By the contrast that the WCAG ask for."""
    for index in range(100):
        paper = colour(index)
        lighter, darker = sorted((_luminance(paper), 0.0 if ink(paper) == "black" else 1.0), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) > 4.5
    assert len({colour(index) for index in range(100)}) == 100


def _luminance(paper: tuple[int, int, int]) -> float:
    weights = (0.2126, 0.7152, 0.0722)
    return sum(weight * ((value / 255 + 0.055) / 1.055) ** 2.4 for weight, value in zip(weights, paper, strict=True))
