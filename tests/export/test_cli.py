from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headwaiter import open_model
from headwaiter_export.cli import add_commands
from tests.conftest import Packages
from tests.export.test_failures import wrong_reference as wrong_reference  # fixture

HEADWAITER = Path(sys.executable).with_name("headwaiter")
HOST_PATHS = (b"/work", b"/root", b"/home", b"/tmp", b"site-packages", b"Traceback")


def _run(*arguments: object) -> Result:
    app = typer.Typer()
    add_commands(app)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_export_prints_summary(tmp_path: Path, checkpoints: Callable[[str], Path]) -> None:
    result = _run("export", checkpoints("distilbert"), "--name", "topics", "--version", 3, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for text in ("graph", "nodes", "attention", "fused", "size", "parity", "export time", "2 of 2 fused", "check fp32"):
        assert text in result.stdout
    assert (tmp_path / "topics/3/fp32/manifest.json").is_file()

    inspected = _run("inspect", tmp_path / "topics", "--device", "cuda")
    assert inspected.exit_code == 0, inspected.output
    for text in (
        "topics version 3, fp32",
        "graph",
        "nodes",
        "2 of 2 fused",
        "length 61",
        "every node has a CUDA kernel",
    ):
        assert text in inspected.stdout

    (tmp_path / "topics/3/fp32/model.onnx").write_bytes(b"something else")
    rejected = _run("inspect", tmp_path / "topics")
    assert rejected.exit_code == 2
    for text in ("model.onnx", "checksum"):
        assert text in _unwrapped(rejected.stderr)


def test_error_with_brackets_is_printed_verbatim(tmp_path: Path) -> None:
    rejected = _run("inspect", tmp_path / "models" / "[bold]x[/]")
    assert rejected.exit_code == 2
    assert "[bold]x[/]" in _unwrapped(rejected.stderr)


@pytest.mark.slow
def test_inspect_cuda_lists_cpu_fallbacks(packages: Packages) -> None:
    result = _run("inspect", packages("gpt2", "int8").package.folder, "--device", "cuda")
    assert result.exit_code == 0, result.output
    for operator in ("GroupQueryAttention", "MatMulIntegerToFloat"):
        assert f"decoder: {operator} would fall back to the CPU" in _unwrapped(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "vit"])
def test_inspect_int8_prints_equal_top_answers(kind: str, packages: Packages) -> None:
    package = packages(kind, "int8").package
    assert package.manifest.loss is not None
    equal, compared = str(package.manifest.loss.top_answers).split("/")
    assert f"top answer equal in {equal} of {compared}" in _unwrapped(_run("inspect", package.folder).stdout)


@pytest.mark.parametrize("kind", ["gpt2", "vit"])
def test_package_contains_no_host_paths(kind: str, packages: Packages) -> None:
    package = packages(kind, "int8").package
    for name in package.manifest.sha256 | {"manifest.json": ""}:
        assert name.rsplit(".", 1)[1] in ("onnx", "safetensors", "json", "model", "spm")
        content = package.file(name).read_bytes()
        assert not [path for path in HOST_PATHS if path in content], name
        assert not content.startswith((b"\x80", b"PK\x03\x04"))


@pytest.fixture
def two_versions(tmp_path: Path, packages: Packages) -> Path:
    """Version 1 in fp32 and int8, version 2 in fp32."""
    model = tmp_path / "models/distilbert"
    for version, precision in (("1", "fp32"), ("1", "int8"), ("2", "fp32")):
        package = packages("distilbert", "int8" if precision == "int8" else "fp32").package
        folder = shutil.copytree(package.folder, model / version / precision)
        content = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(content | {"version": version}))
    return model


def test_inspect_lists_versions_and_precisions(two_versions: Path) -> None:
    for path in (two_versions, two_versions / "1/int8"):
        result = _run("inspect", path)
        assert result.exit_code == 0, result.output
        assert "available version 1: fp32, int8; version 2: fp32" in _unwrapped(result.stdout)


@pytest.mark.parametrize(
    ("path", "options", "missing"),
    [
        (".", ["--precision", "int8"], "no int8 package of version 2"),
        (".", ["--precision", "fp16", "--version", "1"], "no fp16 package of version 1"),
        ("1/int8", ["--precision", "fp32"], "no fp32 package of version 1"),
        ("1/int8", ["--version", "2"], "no int8 package of version 2"),
    ],
)
def test_inspect_unavailable_package_exits_2_with_available_ones(
    path: str, options: list[str], missing: str, two_versions: Path
) -> None:
    result = _run("inspect", two_versions / path, *options)
    assert result.exit_code == 2
    assert f"distilbert has {missing}; available: version 1: fp32, int8; version 2: fp32." in _unwrapped(result.stderr)


def test_inspect_missing_version_exits_2_with_available_ones(two_versions: Path) -> None:
    result = _run("inspect", two_versions, "--version", 3)
    assert result.exit_code == 2
    assert "has no version 3; available: 1, 2." in _unwrapped(result.stderr)


REJECTIONS = {
    "task": (["export", ".", "--task", "cooking"], ("'cooking'", "translation")),
    "precision": (
        ["export", ".", "--precision", "int4"],
        ("'int4' is not a precision; supported precisions are fp32, fp16, int8.",),
    ),
    "source": (["export", "no/such/thing/here"], ("no/such/thing/here", "config.json", "opus-mt-zh-en")),
    "name": (["export", ".", "--name", "Ü"], ("'Ü' is not a package name",)),
    "package": (["inspect", "no/such/thing"], ("no/such/thing",)),
    "device": (["inspect", ".", "--device", "tpu"], ("'tpu'", "cpu and cuda")),
}


@pytest.mark.parametrize("case", REJECTIONS)
def test_cli_invalid_arguments_exit_2(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, fragments = REJECTIONS[case]
    monkeypatch.chdir(tmp_path)
    result = _run(*arguments)
    assert result.exit_code == 2
    for fragment in fragments:
        assert fragment in _unwrapped(result.stderr)
    assert not list((tmp_path / "models").rglob("*"))


RUN_COMMAND = """
import sys
from headwaiter.cli.main import main

try:
    main()
except SystemExit as end:
    print("imported", *{"torch", "transformers"} & set(sys.modules))
    sys.exit(end.code)
"""
TYPING_MISTAKES = {
    "option": ["CHECKPOINT", "--precison", "int8"],
    "precision": ["CHECKPOINT", "--precision", "int4"],
    "task": ["CHECKPOINT", "--task", "cooking"],
    "name": ["CHECKPOINT", "--name", "My Model"],
    "version": ["CHECKPOINT", "--version", "v2"],
    "output": ["CHECKPOINT", "--out", "CHECKPOINT/config.json"],
    "missing directory": ["no/such/directory"],
    "directory without a checkpoint": ["."],
    "name that is not in the menu": ["opus-mt-zh-eng"],
    "missing Argos package": ["translate-zh_en.argosmodel"],
}


@pytest.mark.parametrize("case", TYPING_MISTAKES)
def test_export_typing_mistake_exits_2_without_importing_torch(
    case: str, tmp_path: Path, checkpoints: Callable[[str], Path]
) -> None:
    arguments = [argument.replace("CHECKPOINT", str(checkpoints("distilbert"))) for argument in TYPING_MISTAKES[case]]
    command = [sys.executable, "-c", RUN_COMMAND, "export", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60)
    assert result.returncode == 2, result.stderr
    assert result.stdout.split() == ["imported"]
    assert not list(tmp_path.iterdir())


def test_export_force_over_loaded_package_warns(tmp_path: Path, checkpoints: Callable[[str], Path]) -> None:
    arguments = ("export", checkpoints("distilbert"), "--name", "topics", "--out", tmp_path, "--force")
    assert "in use" not in _run(*arguments).stderr
    with open_model(tmp_path / "topics", threads=1):
        replaced = _run(*arguments)
    assert replaced.exit_code == 0, replaced.output
    assert _unwrapped(replaced.stderr).count("topics/1/fp32 is in use by a running service") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_reference")
def test_export_out_of_tolerance_exits_1(tmp_path: Path, checkpoints: Callable[[str], Path]) -> None:
    result = _run("export", checkpoints("distilbert"), "--out", tmp_path / "models")
    assert result.exit_code == 1
    assert _unwrapped(result.stderr).count("differ from torch fp32") == 1
    assert "No package was written." in _unwrapped(result.stderr)
    assert not list((tmp_path / "models").rglob("*"))


@pytest.mark.slow
def test_export_command_without_weights_exits_2(tmp_path: Path) -> None:
    """Runs the installed command in its own process."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    environment = {**os.environ, "COLUMNS": "80"}
    command = [str(HEADWAITER), "export", str(tmp_path), "--name", "tiny", "--out", str(tmp_path / "models")]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith(f"✗ {tmp_path} has no weights; model.safetensors is required (")
    assert not list((tmp_path / "models").rglob("*"))


def test_export_help_lists_options_and_examples() -> None:
    result = _run("export", "--help")
    assert result.exit_code == 0
    for text in ("--precision", "--force", "--allow-unfused", "headwaiter export opus-mt-zh-en"):
        assert text in result.stdout


def _unwrapped(text: str) -> str:
    return " ".join(text.split())
