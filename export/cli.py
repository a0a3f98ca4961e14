"""`headwaiter export` and `inspect`. Torch is loaded when an export begins, not before."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, get_args

import typer

from export import report
from export.console import console, fail, step
from export.errors import ExportError, SourceError
from service.package import PackageError, Precision, Task, open_package, verify

_TASKS, _PRECISIONS = get_args(Task), get_args(Precision)


def add_commands(app: typer.Typer) -> None:
    app.command("export")(export_command)
    app.command("inspect")(inspect_command)


def export_command(
    source: Annotated[
        str, typer.Argument(help="A directory in Hugging Face form, an Argos package, a hub id, or a menu name.")
    ],
    task: Annotated[str | None, typer.Option(help=f"Fail unless the model is for this: {', '.join(_TASKS)}.")] = None,
    name: Annotated[str | None, typer.Option(help="The package's name; else the last part of SOURCE.")] = None,
    version: Annotated[
        str | None, typer.Option(help="A whole number; serving takes the largest. Else 1, or the menu's.")
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32 for all, int8 for CPUs, fp16 for CUDA.")] = "fp32",
    out: Annotated[Path, typer.Option(help="Where packages are kept.")] = Path("models"),
    force: Annotated[bool, typer.Option("--force", help="Replace the package that is there.")] = False,
    allow_unfused: Annotated[
        bool, typer.Option("--allow-unfused", help="Accept a family whose attention stays unfused.")
    ] = False,
) -> None:
    """Turn a trained model into a package that serves: ONNX graphs with fused attention and a KV cache.

    The answers are compared with the original's before anything is written.

    Examples:

      headwaiter export opus-mt-zh-en --precision int8

      headwaiter export checkpoints/my-bert --name support-topics --version 2
    """
    _demand(task is None or task in _TASKS, f"{task!r} is not a task; tasks are {', '.join(_TASKS)}.")
    _demand(precision in _PRECISIONS, f"{precision!r} is not a precision; there are {', '.join(_PRECISIONS)}.")
    started = time.monotonic()
    try:
        with step("start"):
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            from export.pipeline import Order, export
        order = Order(source, task, name, version, precision, out, force, allow_unfused)  # type: ignore[arg-type]
        package = export(order, step)
    except ModuleNotFoundError as error:
        fail(f"Exporting needs {error.name}, which is not installed: pip install 'headwaiter[export,cpu]'.", 2)
    except SourceError as error:
        fail(str(error), 2)
    except ExportError as error:
        fail(f"{error} No package was written.", 1)
    report.show(console, package, seconds=time.monotonic() - started)


def inspect_command(
    path: Annotated[Path, typer.Argument(help="models/NAME, or the folder of one package.")],
    version: Annotated[str | None, typer.Option(help="Else the newest.")] = None,
    precision: Annotated[str | None, typer.Option(help="Else fp32, else the only one.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda: what would fall back to the CPU there.")] = None,
) -> None:
    """Show what a package holds and how it compares with its original, after verifying every file.

    Examples:

      headwaiter inspect models/opus-mt-zh-en --precision int8

      headwaiter inspect models/opus-mt-zh-en --precision fp16 --device cuda
    """
    _demand(
        precision is None or precision in _PRECISIONS,
        f"{precision!r} is not a precision; there are {', '.join(_PRECISIONS)}.",
    )
    _demand(device in (None, "cpu", "cuda"), f"{device!r} is not a device; there are cpu and cuda.")
    try:
        package = open_package(path, version=version, precision=precision)  # type: ignore[arg-type]
        verify(package)
    except PackageError as error:
        fail(str(error), 2)
    report.show(console, package)
    if device == "cuda":
        report.show_cuda(console, package)


def _demand(holds: bool, sentence: str) -> None:
    if not holds:
        fail(sentence, 2)
