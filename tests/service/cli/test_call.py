"""`headwaiter call` against an echo server."""

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
from google.rpc import error_details_pb2
from PIL import Image
from typer.testing import CliRunner, Result

from headwaiter.cli.call import add_commands
from headwaiter.cli.call.box_drawing import class_colour, draw_boxes, text_colour
from headwaiter.client.results import Box, DetectionResult, Model, Timing, Usage
from tests.echo_server_kit import EchoServer, Rejection, invalid_argument, run_server

HEADWAITER = Path(sys.executable).with_name("headwaiter")
COMMON_FIELDS = {
    "model": {"name": "echo", "version": "3"},
    "usage": {"input_tokens": 5, "output_tokens": 7, "images": 1},
    "timing": {"queue_ms": 0.5, "prepare_ms": 1.5, "run_ms": 2.5},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EchoServer]:
    with run_server(EchoServer()) as running:
        monkeypatch.setenv("HEADWAITER_ADDRESS", running.address)
        yield running


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    path = tmp_path / "scene.png"
    Image.new("RGB", (40, 30), "white").save(path)
    return path


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


def _run(*arguments: object, stdin: str | None = None) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_commands(app)
    return CliRunner().invoke(app, ["call", "echo", *map(str, arguments)], input=stdin)


def _json(*arguments: object, stdin: str | None = None) -> Any:
    result = _run(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_translate_piped_output_is_unmodified_text() -> None:
    """Brackets are not markup, colons are not emoji, long lines are not wrapped."""
    text = "[bold]red[/] [x] :smile: " + "word " * 60
    with run_server(EchoServer()) as running:
        result = _run("translate", text, "two", "--address", running.address)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{text}!\ntwo!\n"


def test_translate_options_set_request_fields(server: EchoServer) -> None:
    options = [
        "--num-beams",
        4,
        "--num-return-sequences",
        2,
        "--length-penalty",
        0.5,
        "--early-stopping",
        "--no-do-sample",
        "--top-k",
        0,
    ]
    language_options = ["--source-language", "zh", "--target-language", "en", "--no-split"]
    assert _run("translate", "a", *options, *language_options).exit_code == 0
    (request,) = server.requests
    decoding = {field.name: value for field, value in request.decoding.ListFields()}
    assert decoding == {
        "num_beams": 4,
        "num_return_sequences": 2,
        "length_penalty": 0.5,
        "early_stopping": True,
        "do_sample": False,
        "top_k": 0,
    }
    assert (request.source_language, request.target_language, request.split) == ("zh", "en", False)


@pytest.mark.usefixtures("server")
def test_json_output_uses_protocol_field_names() -> None:
    assert _json("translate", "你好") == {
        "results": [
            {
                "hypotheses": [{"text": "你好!", "score": -0.25, "finish_reason": "stop"}],
                "sentences": [{"text": "你好!", "score": -0.25, "finish_reason": "stop"}],
            }
        ],
        **COMMON_FIELDS,
    }
    action = {"discrete": 1, "scores": [0.25, 0.75]}
    assert _json("act", "[0.5, -1]", "--target-return", 40) == {"results": [action], **COMMON_FIELDS}
    description = _json("describe")
    assert (description["limits"], description["state_size"]) == ({"text": 20_000}, 17)
    assert description["decoding"] == {"num_beams": 4, "early_stopping": False, "length_penalty": 0.5}
    assert "languages" not in description


def test_text_from_standard_input_is_sent(server: EchoServer) -> None:
    assert _run("translate", stdin="one\n\ntwo\n").stdout == "one\n\ntwo!\n"
    assert _run("generate", stdin="once\n").stdout == "once!\n"
    for empty in ("", "\n"):
        failed = _run("generate", stdin=empty)
        assert failed.exit_code == 2
        assert "prompt is missing; pass it as an argument or through standard input" in failed.stderr
    assert len(server.requests) == 2


def test_stream_option_prints_text_and_events(server: EchoServer) -> None:
    assert _run("translate", "abc", "--stream").stdout == "ABC\n"
    assert _run("generate", "[b]", "--stream", "--num-beams", 1).stdout == "[b]\n"
    events = [json.loads(line) for line in _run("translate", "ab", "--stream", "--json").stdout.splitlines()]
    done = {"text": "AB", "score": -0.5, "finish_reason": "stop", **COMMON_FIELDS}
    assert events == [{"delta": "A"}, {"delta": "B"}, {"done": done}]
    failed = _run("translate", "a", "b", "--stream")
    assert failed.exit_code == 2
    assert "text has 2 values; --stream takes 1" in failed.stderr
    assert len(server.requests) == 3


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["translate", "a", "--max-new-tokens", 3], "The text was cut off at the token limit"),
        (["translate", "a", "--max-new-tokens", 3, "--stream"], "The text was cut off at the token limit"),
        (["generate", "a", "b", "--max-new-tokens", 3], "2 of 2 texts were cut off at the token limit"),
        (["generate", "a"], ""),
        (["generate", "a", "--max-new-tokens", 3, "--json"], ""),
    ],
)
def test_text_cut_off_is_noted_on_standard_error(arguments: list[object], note: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 0
    assert result.stderr.startswith(note) if note else not result.stderr
    assert "cut off" not in result.stdout


def test_caption_image_files_prints_captions(server: EchoServer, image_file: Path) -> None:
    size = image_file.stat().st_size
    assert _run("caption", image_file, image_file, "--prompt", "a ").stdout == f"a {size} bytes!\n" * 2
    assert _run("caption", image_file, "--stream").stdout == f"{size}\n"
    assert server.requests[0].image[0].data == image_file.read_bytes()


def test_classify_texts_and_images_prints_labels(server: EchoServer, image_file: Path) -> None:
    assert "0.750" in _run("classify", "good", "--top-k", 3, "--threshold", 0.5).stdout
    response = _json("classify", "good", "bad", "--second", "why")
    assert [result["labels"] for result in response["results"]] == [
        [{"name": "text_pair", "index": 1, "score": 0.75}]
    ] * 2
    assert _json("classify", "--image", image_file)["results"][0]["labels"][0]["name"] == "image"
    assert (server.requests[0].top_k, server.requests[0].threshold) == (3, 0.5)
    assert _run("classify", "a", "--image", image_file).exit_code == 2


def test_detect_save_draws_boxes(server: EchoServer, image_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "boxes.jpg"
    result = _run("detect", image_file, "--threshold", 0.25, "--max-boxes", 9, "--save", target)
    assert result.exit_code == 0, result.output
    for word in ("cat[1]", "0.875", "30", "20", "1 object in 40 x 30 pixels"):
        assert word in result.stdout
    drawn = Image.open(target)
    assert drawn.size == (40, 30)
    assert drawn.convert("L").histogram()[255] < 40 * 30
    assert (server.requests[0].threshold, server.requests[0].max_boxes) == (0.25, 9)


def test_act_history_as_json_sets_request_fields(server: EchoServer) -> None:
    steps = [{"state": [1, 0], "action": {"discrete": 2}, "reward": 1}, {"state": [0, 1]}]
    history = json.dumps({"steps": steps, "target_return": 40})
    assert _run("act", history, "--no-greedy", "--seed", 0).exit_code == 0
    vector = json.dumps({"steps": [{"state": [1], "action": {"continuous": {"values": [0.5]}}}], "target_return": 1})
    assert _run("act", stdin=vector).exit_code == 0
    (first,), (second,) = (request.history for request in server.requests)
    assert [list(step.state) for step in first.steps] == [[1, 0], [0, 1]]
    assert (first.steps[0].action.discrete, first.steps[0].reward, first.target_return) == (2, 1, 40)
    assert not first.steps[1].HasField("action")
    assert list(second.steps[0].action.continuous.values) == [0.5]
    assert (server.requests[0].greedy, server.requests[0].HasField("seed")) == (False, True)


@pytest.mark.usefixtures("terminal", "server")
def test_terminal_output_shows_details(image_file: Path) -> None:
    translation = _run("translate", "[a]", "--num-return-sequences", 2, "--num-beams", 2).stdout
    for word in ("[a]!?", "-0.500", "echo version 3", "5 input tokens, 7 output tokens", "4 ms", "\x1b["):
        assert word in translation
    assert "echo version 3" in _run("translate", "a", "--stream").stdout
    assert "██" in _run("classify", "a").stdout
    assert "██" in _run("act", "[1]", "--target-return", 1).stdout
    assert "cat[1]" in _run("detect", image_file).stdout
    for word in ("policy", "text 20,000", "2: cat, dog", "17 numbers", "continuous, size 6", "num_beams 4", "MIT"):
        assert word in _run("describe").stdout


def test_key_option_and_variable_set_authorization(server: EchoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("translate", "a", "--key", "option")
    monkeypatch.setenv("HEADWAITER_KEY", "variable")
    _run("translate", "a")
    assert [metadata["authorization"] for metadata in server.metadata] == ["Bearer option", "Bearer variable"]


_FROM_SERVICE = error_details_pb2.ErrorInfo(reason="NOT_FOUND", domain="headwaiter")
REJECTIONS: dict[str, tuple[Rejection, int, str]] = {
    "input": (invalid_argument("text[0]", "text[0] has [5] characters", "4"), 2, "text[0] has [5] characters"),
    "key": (Rejection(grpc.StatusCode.UNAUTHENTICATED, "no key"), 2, "pass one with --key KEY."),
    "model": (Rejection(grpc.StatusCode.NOT_FOUND, "available models: a", (_FROM_SERVICE,)), 2, "available models: a"),
    "task": (Rejection(grpc.StatusCode.UNIMPLEMENTED, "echo detects"), 2, "echo detects"),
    "full": (Rejection(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full"), 1, "queue full"),
    "bug": (Rejection(grpc.StatusCode.INTERNAL, "request 1 failed"), 1, "request 1 failed"),
}


@pytest.mark.parametrize("reason", REJECTIONS)
def test_call_rejected_prints_message_and_exits(server: EchoServer, reason: str) -> None:
    rejection, code, message = REJECTIONS[reason]
    server.rejections.append(rejection)
    result = _run("translate", "a", "--json")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("✗ ")
    assert result.stderr.endswith(f"{message}\n")
    assert result.stderr.count("\n") == 1


def test_stream_broken_prints_error_after_received_text(server: EchoServer) -> None:
    server.breaks_after.append(2)
    result = _run("translate", "abc", "--stream")
    assert (result.exit_code, result.stdout) == (1, "AB")
    assert "is unavailable: draining" in result.stderr


INVALID_ARGUMENTS: dict[str, tuple[list[str], str]] = {
    "missing file": (["detect", "no-such.png"], "no-such.png cannot be accessed: No such file"),
    "several images": (["detect", "a.png", "b.png", "--save", "c.png"], "image has 2 values; --save takes 1"),
    "no image extension": (["detect", "a.png", "--save", "c.text"], "c.text has no image extension; use .png or .jpg"),
    "no directory": (["detect", "a.png", "--save", "no/c.png"], "no/c.png cannot be written; its directory"),
    "no directory for images": (["generate-images", "--save", "no/a.png"], "no/a.png cannot be written; its directory"),
    "not numbers": (["act", '["[b]"]'], "history does not match the schema"),
    "not JSON": (["act", "[1"], "history is not valid JSON"),
    "unknown field": (["act", '{"stops": []}'], "history does not match the schema"),
    "neither list nor object": (["act", "3"], "history is 3; it must be a list of numbers or an object"),
    "no target": (["act", "[1]"], "target_return is missing"),
    "key": (["translate", "a", "--key", "ü"], "key has characters that a header cannot contain"),
}


@pytest.mark.parametrize("mistake", INVALID_ARGUMENTS)
def test_call_invalid_argument_prints_one_sentence_and_exits_2(server: EchoServer, mistake: str) -> None:
    arguments, message = INVALID_ARGUMENTS[mistake]
    result = _run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert server.requests == []


def test_help_of_every_subcommand_shows_examples() -> None:
    assert "headwaiter call opus-mt-zh-en translate" in _run("--help").stdout
    for name in ("translate", "caption", "classify", "detect", "act", "generate", "generate-images"):
        text = _run(name, "--help").stdout
        assert "Examples:" in text
        assert f" {name} " in text.split("Examples:")[1]
        assert "--address" in text


def test_installed_command_reads_and_writes_pipes(server: EchoServer) -> None:
    command = [str(HEADWAITER), "call", "echo", "translate", "--json"]
    environment = {**os.environ, "HEADWAITER_ADDRESS": server.address}
    completed = subprocess.run(command, input="你好\n", capture_output=True, text=True, env=environment, timeout=120)
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["results"][0]["hypotheses"][0]["text"] == "你好!"


def test_draw_boxes_edges_coloured_labels_inside_image(tmp_path: Path) -> None:
    source, target = tmp_path / "in.png", tmp_path / "out.png"
    Image.new("RGBA", (200, 100), "white").save(source)
    boxes = (Box("first", 0, 0.9, 40, 50, 120, 90), Box("at the edge", 1, 0.6, 190, 0, 200, 10))
    common_fields = {"model": Model("m", "1"), "usage": Usage(0, 0, 1), "timing": Timing(0, 0, 0)}
    draw_boxes(source, DetectionResult(width=200, height=100, boxes=boxes, **common_fields), target)  # type: ignore[arg-type]
    drawn = Image.open(target)
    assert drawn.getpixel((40, 70)) == class_colour(0)
    assert drawn.getpixel((80, 70)) == (255, 255, 255)
    assert drawn.getpixel((199, 11)) == class_colour(1)


def test_text_colour_every_class_meets_wcag_contrast() -> None:
    for index in range(100):
        background = class_colour(index)
        lighter, darker = sorted(
            (_luminance(background), 0.0 if text_colour(background) == "black" else 1.0), reverse=True
        )
        assert (lighter + 0.05) / (darker + 0.05) > 4.5
    assert len({class_colour(index) for index in range(100)}) == 100


def _luminance(background: tuple[int, int, int]) -> float:
    weights = (0.2126, 0.7152, 0.0722)
    return sum(
        weight * ((value / 255 + 0.055) / 1.055) ** 2.4 for weight, value in zip(weights, background, strict=True)
    )
