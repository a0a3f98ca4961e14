"""Package summaries that `headwaiter export` and `headwaiter inspect` print."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headwaiter.package.manifest import Package, PackageError, Parity, PrecisionLoss, open_package, versions


def print_package(console: Console, package: Package, seconds: float | None = None) -> None:
    manifest = package.manifest
    summary = Table(box=None, show_header=False, pad_edge=False)
    summary.add_column(style="dim")
    summary.add_column(overflow="fold")
    for name, text in _summary_rows(package):
        summary.add_row(name, escape(text))
    if seconds is not None:
        summary.add_row("export time", f"{seconds:.0f} s, peak memory {_peak_memory() / 1e9:.1f} GB")
    console.print(f"\n[bold]{manifest.name}[/] version {manifest.version}, {manifest.precision}")
    console.print(_graph_table(package))
    console.print(summary)


def format_available(package: Package) -> str:
    """Format the precisions of every version next to a package, such as "version 1: fp32, int8; version 2: fp32"."""
    manifest = package.manifest
    exported: dict[str, list[str]] = {manifest.version: [manifest.precision]}
    if package.folder.resolve().parts[-2:] == (manifest.version, manifest.precision):
        exported = exported_precisions(package.folder.resolve().parents[1])
    return "; ".join(f"version {version}: {', '.join(precisions)}" for version, precisions in exported.items())


def print_cuda_fallbacks(console: Console, package: Package) -> None:
    fallbacks = package.manifest.cuda
    if not fallbacks:
        console.print("cuda      every node has a CUDA kernel for its types")
    for graph, operators in fallbacks.items():
        for operator, reason in operators.items():
            console.print(f"cuda      {graph}: {operator} would fall back to the CPU: {reason}", style="yellow")


def _graph_table(package: Package) -> Table:
    table = Table(
        "graph", "nodes", "attention", "fused", "inputs", "outputs", "size", header_style="bold", box=SIMPLE_HEAD
    )
    for name, graph in package.manifest.graphs.items():
        counts = (graph.nodes, graph.attention, graph.fused, len(graph.inputs), len(graph.outputs))
        table.add_row(name, *map(str, counts), _format_size(package.file(graph.file).stat().st_size))
    return table


def _summary_rows(package: Package) -> Iterator[tuple[str, str]]:
    manifest = package.manifest
    yield "model", f"{manifest.task}, {manifest.family}, {manifest.parameters:,} parameters"
    yield "source", manifest.source
    if manifest.license:
        yield "licence", manifest.license
    if manifest.attribution:
        yield "attribution", " ".join(manifest.attribution.split())
    fused = manifest.fused
    operators = ", ".join(f"{count} {name}" for name, count in fused.operators.items())
    yield "attention", f"{fused.fused} of {fused.attention} fused" + (f": {operators}" if operators else "")
    if fused.unfused_reason:
        yield "unfused", fused.unfused_reason
    yield "parity", _format_parity(manifest.parity)
    if manifest.loss is not None:
        yield manifest.precision, _format_loss(manifest.loss)
    yield "limits", ", ".join(f"{name} {value:,}" for name, value in manifest.limits.items())
    yield "size", f"{_format_size(package.size())} in {len(manifest.sha256)} files"
    yield "folder", str(package.folder)
    yield "available", format_available(package)


def _format_parity(parity: Parity) -> str:
    """Format the largest difference, as a fraction of the output range, followed by each metric."""
    metrics = {name: getattr(parity, name) for name in ("logits", "cached", "batched", "positions")}
    measured = {name: value for name, value in metrics.items() if value is not None}
    tokens = f"; matching greedy tokens {parity.tokens}" if parity.tokens else ""
    details = ", ".join(f"{name} {value:.1e}" for name, value in measured.items())
    return (
        f"max. difference from {parity.reference} {max(measured.values()):.1e} of the output range ({details}){tokens}"
    )


def _format_loss(loss: PrecisionLoss) -> str:
    answers = ""
    if equal := loss.top_answers or loss.tokens:
        answers = "top answer equal in {} of {}, ".format(*equal.split("/"))
    return f"{answers}error vs. fp32 {loss.logits:.2g}, batched vs. single row {loss.batched:.1e}"


def _peak_memory() -> int:
    """Return the peak resident set size of this process in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _format_size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def exported_precisions(folder: Path) -> dict[str, list[str]]:
    """Return the exported precisions of a model by version. Invalid packages are skipped."""
    precisions: dict[str, list[str]] = {}
    for version in versions(folder) if folder.is_dir() else ():
        for package_dir in sorted((folder / version).iterdir()):
            with suppress(PackageError):
                precisions.setdefault(version, []).append(open_package(package_dir).manifest.precision)
    return precisions
