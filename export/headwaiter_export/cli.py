"""The commands `headwaiter export` and `headwaiter inspect`. Torch is imported once the arguments are checked."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, get_args

import typer

from headwaiter.console import CommandConsole, fail
from headwaiter.package.manifest import Package, PackageError, Precision, open_package, verify
from headwaiter.package.usage import is_in_use
from headwaiter.protocol.tasks import task_names
from headwaiter_export import report
from headwaiter_export.errors import ExportError, SourceError
from headwaiter_export.request import ExportRequest, check_request

_TASKS, _PRECISIONS = task_names(), get_args(Precision)


def add_commands(app: typer.Typer) -> None:
    app.command("export")(export_command)
    app.command("inspect")(inspect_command)


def export_command(
    source: Annotated[
        str, typer.Argument(help="Hugging Face checkpoint directory, Argos package, hub id, or menu name.")
    ],
    task: Annotated[str | None, typer.Option(help=f"Expected task; fail if it differs: {', '.join(_TASKS)}.")] = None,
    name: Annotated[str | None, typer.Option(help="Package name (default: last part of SOURCE).")] = None,
    version: Annotated[
        str | None,
        typer.Option(help="Integer version; the largest is served (default: 1, or the version in the menu)."),
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32 for any device, int8 for CPUs, fp16 for CUDA devices.")] = "fp32",
    out: Annotated[Path, typer.Option(help="Directory of the packages.")] = Path("models"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
    allow_unfused: Annotated[
        bool, typer.Option("--allow-unfused", help="Export a family whose attention cannot be fused.")
    ] = False,
) -> None:
    """Export a trained model as a model package: ONNX graphs with fused attention and a KV cache.

    The outputs are compared with the original model before the package is written.

    Examples:

      headwaiter export opus-mt-zh-en --precision int8

      headwaiter export checkpoints/my-bert --name support-topics --version 2
    """
    _require(task is None or task in _TASKS, f"{task!r} is not a task; supported tasks are {', '.join(_TASKS)}.")
    _require_precision(precision)
    request = ExportRequest(source, task, name, version, precision, out, force, allow_unfused)  # type: ignore[arg-type]
    console, started = CommandConsole(), time.monotonic()
    try:
        check_request(request)
        if force and is_in_use(request.folder):
            console.warn(
                f"{request.folder} is in use by a running service, which cannot restart its replicas from a replaced "
                f"package; run `headwaiter serve` again after this export, or export a new --version instead."
            )
        with console.step("import dependencies"):
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            from headwaiter_export.pipeline import export
        package = export(request, console.step)
    except ModuleNotFoundError as error:
        console.fail(
            f"Exporting needs {error.name}, which is not installed; run pip install 'headwaiter[export,cpu]'.", 2
        )
    except SourceError as error:
        console.fail(str(error), 2)
    except ExportError as error:
        console.fail(f"{error} No package was written.", 1)
    report.print_package(console.out, package, seconds=time.monotonic() - started)


def inspect_command(
    path: Annotated[Path, typer.Argument(help="models/NAME, or the directory of one package.")],
    version: Annotated[str | None, typer.Option(help="Package version (default: the newest).")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Precision (default: fp32 if it was exported, otherwise the only one).")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="With cuda, list the operators that would fall back to the CPU.")
    ] = None,
) -> None:
    """Verify the checksums of a package, then print its contents, its parity with the original and other versions.

    Examples:

      headwaiter inspect models/opus-mt-zh-en --precision int8

      headwaiter inspect models/opus-mt-zh-en --precision fp16 --device cuda
    """
    if precision is not None:
        _require_precision(precision)
    _require(device in (None, "cpu", "cuda"), f"{device!r} is not a device; supported devices are cpu and cuda.")
    console = CommandConsole()
    try:
        package = open_package(path, version=version, precision=precision)  # type: ignore[arg-type]
        _require_selected(package, version, precision)
        verify(package)
    except PackageError as error:
        console.fail(str(error), 2)
    report.print_package(console.out, package)
    if device == "cuda":
        report.print_cuda_fallbacks(console.out, package)


def _require_selected(package: Package, version: str | None, precision: str | None) -> None:
    """Fail if the package is not of the requested version and precision."""
    manifest = package.manifest
    _require(
        version in (None, manifest.version) and precision in (None, manifest.precision),
        f"{manifest.name} has no {precision or manifest.precision} package of version {version or manifest.version}; "
        f"available: {report.format_available(package)}.",
    )


def _require_precision(precision: str) -> None:
    _require(
        precision in _PRECISIONS,
        f"{precision!r} is not a precision; supported precisions are {', '.join(_PRECISIONS)}.",
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        fail(message, 2)
