from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from export.cli import add_commands
from tests.conftest import Packages
from tests.export.test_failures import wrong as wrong  # a fixture

HEADWAITER = Path(sys.executable).with_name("headwaiter")
OF_THIS_MACHINE = (b"/work", b"/root", b"/home", b"/tmp", b"site-packages", b"Traceback")


def _run(*arguments: object) -> Result:
    app = typer.Typer()
    add_commands(app)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_export_shows_what_it_did(tmp_path: Path, checkpoints: Callable[[str], Path]) -> None:
    result = _run("export", checkpoints("distilbert"), "--name", "topics", "--version", 3, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for word in ("graph", "nodes", "attention", "fused", "size", "difference", "seconds", "2 of 2 fused", "check fp32"):
        assert word in result.stdout
    assert (tmp_path / "topics/3/fp32/manifest.json").is_file()

    inspected = _run("inspect", tmp_path / "topics", "--device", "cuda")
    assert inspected.exit_code == 0, inspected.output
    for word in (
        "topics version 3, fp32",
        "graph",
        "nodes",
        "2 of 2 fused",
        "length 61",
        "every node has a CUDA kernel",
    ):
        assert word in inspected.stdout

    (tmp_path / "topics/3/fp32/model.onnx").write_bytes(b"something else")
    refused = _run("inspect", tmp_path / "topics")
    assert refused.exit_code == 2
    assert "model.onnx is not the file that was packed" in _unwrapped(refused.stderr)


def test_brackets_in_a_sentence_are_printed(tmp_path: Path) -> None:
    refused = _run("inspect", tmp_path / "models" / "[bold]x[/]")
    assert refused.exit_code == 2
    assert "[bold]x[/] is not there" in _unwrapped(refused.stderr)


def test_inspect_lists_what_falls_back(packages: Packages) -> None:
    result = _run("inspect", packages("gpt2", "int8").package.folder, "--device", "cuda")
    assert result.exit_code == 0, result.output
    for operator in ("GroupQueryAttention", "MatMulIntegerToFloat"):
        assert f"decoder: {operator} would fall back to the CPU" in _unwrapped(result.stdout)


@pytest.mark.parametrize("kind", ["gpt2", "vit"])
def test_packages_tell_nothing_of_this_machine(kind: str, packages: Packages) -> None:
    """No paths, no stack traces, nothing that would have to be unpickled."""
    package = packages(kind, "int8").package
    for name in package.manifest.sha256 | {"manifest.json": ""}:
        assert name.rsplit(".", 1)[1] in ("onnx", "safetensors", "json", "model", "spm")
        content = package.file(name).read_bytes()
        assert not [path for path in OF_THIS_MACHINE if path in content], name
        assert not content.startswith((b"\x80", b"PK\x03\x04"))


REFUSALS = {
    "task": (["export", ".", "--task", "cooking"], "'cooking' is not a task; tasks are translation"),
    "precision": (["export", ".", "--precision", "int4"], "'int4' is not a precision; there are fp32, fp16, int8"),
    "source": (["export", "no/such/thing/here"], "is neither a directory"),
    "name": (["export", ".", "--name", "Ü"], "is not a package name"),
    "package": (["inspect", "no/such/thing"], "is not there"),
    "device": (["inspect", ".", "--device", "tpu"], "'tpu' is not a device; there are cpu and cuda"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals(refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, sentence = REFUSALS[refusal]
    monkeypatch.chdir(tmp_path)
    result = _run(*arguments)
    assert result.exit_code == 2
    assert sentence in _unwrapped(result.stderr)
    assert not list((tmp_path / "models").rglob("*"))


@pytest.mark.usefixtures("wrong")
def test_out_of_tolerance_exits_1(tmp_path: Path, checkpoints: Callable[[str], Path]) -> None:
    result = _run("export", checkpoints("distilbert"), "--out", tmp_path / "models")
    assert result.exit_code == 1
    assert _unwrapped(result.stderr).count("differ from torch fp32") == 1
    assert "No package was written." in _unwrapped(result.stderr)
    assert not list((tmp_path / "models").rglob("*"))


def test_real_command(tmp_path: Path) -> None:
    """One process as users start it: a source without weights."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    environment = {**os.environ, "COLUMNS": "80"}
    command = [str(HEADWAITER), "export", str(tmp_path), "--name", "tiny", "--out", str(tmp_path / "models")]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"✗ {tmp_path} has no weights: model.safetensors is expected (")
    assert not list((tmp_path / "models").rglob("*"))


def test_help() -> None:
    helped = _run("export", "--help")
    assert helped.exit_code == 0
    for word in ("--precision", "--force", "--allow-unfused", "headwaiter export opus-mt-zh-en"):
        assert word in helped.stdout


def _unwrapped(text: str) -> str:
    return " ".join(text.split())
