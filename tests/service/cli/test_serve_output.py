"""Example commands and warnings that `headwaiter serve` prints."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from headwaiter.api.keys import format_key_line, make_key
from headwaiter.cli.deployment import print_warnings
from headwaiter.cli.example_commands import example_commands
from headwaiter.console import CommandConsole
from headwaiter.serving.config import load_config
from tests.serving_kit import write_config, write_package

BASE: dict[str, Any] = {"models": {"one": {"path": "models/one"}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_package(tmp_path / "models", "one")
    (tmp_path / "keys.txt").write_text(format_key_line("alice", make_key()))
    return tmp_path


@pytest.mark.parametrize(
    ("manifest", "call", "curl", "python"),
    [
        (
            {"languages": {"source": "zh"}},
            "translate '服务器崩溃了，请稍后再试。'",
            '{"text": "服务器',
            '.translate("one", "服务器',
        ),
        ({}, "translate 'Good morning.'", '{"text": "Good morning."}', '.translate("one", "Good morning.").text)'),
        ({"task": "generation"}, "generate 'Once upon", '{"prompt": "Once upon a time"}', '.generate("one", "Once'),
        (
            {"task": "generation", "noise": 8},
            "generate-images --count 4",
            "/generate-images -H 'content-type: application/json' -d '{\"count\": 4}",
            '.generate_images("one", count=4).images)',
        ),
        (
            {"task": "captioning"},
            "caption samples/scene-1.png",
            "image=@samples/scene-1.png",
            '.caption("one", "samples/scene-1.png").text)',
        ),
        (
            {"task": "detection"},
            "detect samples/scene-1.png",
            "image=@samples/scene-1.png",
            '.detect("one", "samples/scene-1.png").boxes)',
        ),
        ({"task": "classification"}, "classify 'That was", '{"text": "That was', '.classify("one", text="That was'),
        ({"task": "policy"}, "call one describe", "/models/one", '.describe("one"))'),
    ],
)
@pytest.mark.parametrize("needs_key", [False, True])
def test_example_commands_match_task(
    folder: Path,
    manifest: dict[str, Any],
    call: str,
    curl: str,
    python: str,
    needs_key: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(Path(__file__).parents[3])  # the directory of samples/
    write_package(folder / "models", "one", **manifest)
    auth = {"auth": {"keys": "keys.txt"}} if needs_key else {}
    service = load_config(write_config(folder / "serve.yaml", {**BASE, **auth, "http": {"port": 8001}}))

    cli_command, curl_command, python_command = example_commands(service)

    assert cli_command.startswith("headwaiter call one ")
    assert call in cli_command
    assert curl_command.startswith("curl ")
    assert curl in curl_command
    assert "http://localhost:8001/models/one" in curl_command
    assert python_command.startswith("python -c ")
    assert python in python_command
    assert all(("HEADWAITER_KEY" in command) == needs_key for command in (curl_command, python_command))
    compile(shlex.split(python_command)[2], "example", "exec")


def test_example_commands_outside_path_use_relative_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(Path(sys.executable).parents[2])
    cli_command, _, python_command = example_commands(load_config(write_config(folder / "serve.yaml", BASE)))
    assert cli_command.startswith(str(Path(*Path(sys.executable).parts[-3:-1], "headwaiter call")))
    assert python_command.startswith(str(Path(*Path(sys.executable).parts[-3:-1], "python -c")))


def test_print_warnings_public_service_without_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = load_config(write_config(folder / "serve.yaml", BASE))
    print_warnings(local, CommandConsole())
    assert capsys.readouterr().err == ""
    public = load_config(write_config(folder / "serve.yaml", {**BASE, "http": {"host": "0.0.0.0"}}))
    print_warnings(public, CommandConsole())
    warning = capsys.readouterr().err
    for fragment in ("9000", "8000", "without authentication", "headwaiter key"):
        assert fragment in warning
