"""`headwaiter compare` with packages of tiny models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headwaiter.cli.compare import add_commands
from headwaiter.package.manifest import MANIFEST
from tests.conftest import Packages
from tests.images_kit import random_png


def _run(*arguments: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_commands(app)
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def _with_shifted_labels(package: Path, label: str, target: Path) -> Path:
    """Copy a package and insert a label before the others, so that every answer has another name."""
    shutil.copytree(package, target)
    manifest = (target / MANIFEST).read_text()
    (target / MANIFEST).write_text(manifest.replace('"labels": [', f'"labels": [\n  "{label}",', 1))
    return target


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("a table for two\n\nthe bill, please\nsoup of the day\n", encoding="utf-8")
    return file


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for width in (40, 50):
        (folder / f"{width}.png").write_bytes(random_png(width, 40))
    (folder / "notes.txt").write_text("not an image")
    return folder


@pytest.mark.parametrize("kind", ["distilbert", "marian", "gpt2"])
def test_compare_package_with_itself_on_texts_exits_0(kind: str, packages: Packages, texts: Path) -> None:
    folder = packages(kind, "fp32").package.folder
    result = _run(folder, folder, "--input", texts)
    assert result.exit_code == 0, result.output
    assert result.stdout == "3 of 3 answers are equal\n"


@pytest.mark.parametrize("kind", ["vit", "detr", "caption-vit"])
def test_compare_package_with_itself_on_images_exits_0(kind: str, packages: Packages, images: Path) -> None:
    folder = packages(kind, "fp32").package.folder
    result = _run(folder, folder, "--input", images, "--input", images / "40.png")
    assert result.exit_code == 0, result.output
    assert result.stdout == "3 of 3 answers are equal\n"


def test_compare_differing_packages_prints_items_and_exits_1(packages: Packages, texts: Path, tmp_path: Path) -> None:
    first = packages("distilbert", "fp32").package.folder
    second = _with_shifted_labels(first, "shifted", tmp_path / "second")
    result = _run(first, second, "--input", texts)
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == "0 of 3 answers are equal"
    assert lines[::3][:3] == ["a table for two", "the bill, please", "soup of the day"]
    assert lines[1].startswith(f"  {first}: ")
    assert lines[2].startswith(f"  {second}: ")
    assert lines[1].rsplit(": ", 1)[1] != lines[2].rsplit(": ", 1)[1]


def test_compare_different_tasks_exits_2(packages: Packages, texts: Path) -> None:
    first, second = (packages(kind, "fp32").package.folder for kind in ("distilbert", "marian"))
    result = _run(first, second, "--input", texts)
    assert result.exit_code == 2
    assert "classification of texts and translation of texts" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("kind", "content", "fragment"),
    [
        ("decision_transformer", b"a text", "only models that read texts or images"),
        ("distilbert", b"\n \n", "has no text"),
        ("distilbert", b"\xff\xfe", "is not text in UTF-8"),
        ("vit", b"a text", "image[0]"),
    ],
    ids=["policy", "no text", "binary", "no image"],
)
def test_compare_unsuitable_input_exits_2(
    kind: str, content: bytes, fragment: str, packages: Packages, tmp_path: Path
) -> None:
    (tmp_path / "input").write_bytes(content)
    folder = packages(kind, "fp32").package.folder
    result = _run(folder, folder, "--input", tmp_path / "input")
    assert result.exit_code == 2
    assert fragment in " ".join(result.stderr.split())


def test_compare_missing_package_or_input_exits_2(packages: Packages, texts: Path, tmp_path: Path) -> None:
    folder = packages("distilbert", "fp32").package.folder
    for arguments in (
        (folder, tmp_path / "nothing", "--input", texts),
        (folder, folder, "--input", tmp_path / "nothing"),
    ):
        result = _run(*arguments)
        assert result.exit_code == 2
        assert str(tmp_path / "nothing") in result.stderr.replace("\n", "")
