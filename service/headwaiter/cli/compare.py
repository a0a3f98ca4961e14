"""The command `headwaiter compare`: the answers of two packages to the same inputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwaiter.console import CommandConsole

if TYPE_CHECKING:
    from headwaiter.package.manifest import Manifest, Package

_IMAGE_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def add_commands(app: typer.Typer) -> None:
    app.command("compare")(compare_command)


def compare_command(
    first: Annotated[Path, typer.Argument(help="models/NAME, or the directory of one package.")],
    second: Annotated[Path, typer.Argument(help="Another package for the same task.")],
    inputs: Annotated[
        list[Path],
        typer.Option(
            "--input", help="Text file with one text per line, or an image or directory of images; may be repeated."
        ),
    ],
) -> None:
    """Compare the answers of two packages, for example of two precisions or versions.

    Prints the share of equal answers (top labels, labels of the boxes, or texts without sampling) and every difference.
    Exits with 1 if any answer differs.

    Examples:

      headwaiter compare models/opus-mt-zh-en/1/fp32 models/opus-mt-zh-en/1/int8 --input samples/sentences.txt

      headwaiter compare models/fashion-vit/1/fp32 models/fashion-vit/2/fp32 --input samples/dress.png
    """
    from headwaiter.package.manifest import PackageError, open_package
    from headwaiter.tasks.errors import InputError

    console = CommandConsole()
    try:
        packages = [open_package(path) for path in (first, second)]
        items = _read_items(_common_input([package.manifest for package in packages]), inputs)
        answers = [_run(console, package, items) for package in packages]
    except ModuleNotFoundError as error:
        console.fail(
            f"Comparing needs {error.name}, which is not installed; run pip install 'headwaiter[serve,cpu]'.", 2
        )
    except (InputError, PackageError, ValueError) as error:
        console.fail(str(error), 2)
    except OSError as error:
        console.fail(f"{error.filename} cannot be read: {error.strerror}.", 2)
    differing = [index for index in range(len(items)) if answers[0][index] != answers[1][index]]
    for index in differing:
        console.print(items[index], style="bold", markup=False, soft_wrap=True)
        for package, package_answers in zip(packages, answers, strict=True):
            console.print_line(f"  {package.folder}: {package_answers[index]}")
    console.print_line(f"{len(items) - len(differing)} of {len(items)} answers are equal")
    sys.exit(1 if differing else 0)


def _common_input(manifests: Sequence[Manifest]) -> str:
    """Return "text" or "image". Raises `ValueError` if the packages cannot be compared on one of them."""
    kinds = [(manifest.task_description, _input_kind(manifest)) for manifest in manifests]
    if kinds[0] != kinds[1]:
        described = [f"{task} of {kind}s" if kind else task for task, kind in kinds]
        raise ValueError(
            f"The packages are for different tasks, {described[0]} and {described[1]}; use two of one task."
        )
    task, kind = kinds[0]
    if kind is None:
        raise ValueError(f"The packages are for {task}; only models that read texts or images can be compared.")
    return kind


def _input_kind(manifest: Manifest) -> str | None:
    if manifest.preprocessing.image is not None:
        return "image"
    return None if manifest.preprocessing.text is None else "text"


def _read_items(kind: str, inputs: Sequence[Path]) -> list[str]:
    """Return the lines of the files, or the paths of the images. Raises `ValueError` if there are none."""
    read = _read_lines if kind == "text" else _find_images
    items = [item for path in inputs for item in read(path)]
    if not items:
        raise ValueError(f"{', '.join(map(str, inputs))} has no {kind}; one {kind} per line or file is required.")
    return items


def _read_lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not text in UTF-8; the packages read texts, one per line.") from None
    return [line for line in lines if line.strip()]


def _find_images(path: Path) -> list[str]:
    if not path.is_dir():
        return [str(path)]
    return [str(file) for file in sorted(path.iterdir()) if file.suffix.lower() in _IMAGE_SUFFIXES]


def _run(console: CommandConsole, package: Package, items: list[str]) -> list[str]:
    from headwaiter import open_model

    with console.spinner(f"run {package.folder}"), open_model(package.folder) as model:
        return _answers(model, items)


def _answers(model: Any, items: list[str]) -> list[str]:
    """Return one comparable answer per text or path of an image."""
    match model.manifest.task:
        case "classification":
            labels = model.classify(**{str(_input_kind(model.manifest)): items}, top_k=1)
            return [top[0].name for top in labels]
        case "detection":
            return [", ".join(sorted(box.name for box in result.boxes)) or "none" for result in model.detect(items)]
        case "translation":
            return [result.text for result in model.translate(items, do_sample=False)]
        case "captioning":
            return [result.text for result in model.caption(items, do_sample=False)]
        case "generation":
            return [result.text for result in model.generate(items, do_sample=False)]
    raise AssertionError(model.manifest.task)
