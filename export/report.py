"""What `export` and `inspect` show of packages."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.package import Loss, Package, PackageError, Parity, open_package, versions


def show(console: Console, package: Package, seconds: float | None = None) -> None:
    manifest = package.manifest
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    for name, text in _facts(package):
        facts.add_row(name, escape(text))
    if seconds is not None:
        facts.add_row("seconds", f"{seconds:.0f}, at most {_peak_memory() / 1e9:.1f} GB of memory")
    console.print(f"\n[bold]{manifest.name}[/] version {manifest.version}, {manifest.precision}")
    console.print(_graphs(package))
    console.print(facts)


def show_cuda(console: Console, package: Package) -> None:
    found = package.manifest.cuda
    if not found:
        console.print("cuda      every node has a CUDA kernel for its types")
    for graph, operators in found.items():
        for operator, reason in operators.items():
            console.print(f"cuda      {graph}: {operator} would fall back to the CPU: {reason}", style="yellow")


def _graphs(package: Package) -> Table:
    table = Table(
        "graph", "nodes", "attention", "fused", "inputs", "outputs", "size", header_style="bold", box=SIMPLE_HEAD
    )
    for name, graph in package.manifest.graphs.items():
        counts = (graph.nodes, graph.attention, graph.fused, len(graph.inputs), len(graph.outputs))
        table.add_row(name, *map(str, counts), _size(package.file(graph.file).stat().st_size))
    return table


def _facts(package: Package) -> Iterator[tuple[str, str]]:
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
    if fused.because:
        yield "unfused", f"because {fused.because}"
    yield "difference", _parity(manifest.parity)
    if manifest.loss is not None:
        yield manifest.precision, _loss(manifest.loss)
    yield "limits", ", ".join(f"{name} {value:,}" for name, value in manifest.limits.items())
    yield "size", f"{_size(package.size())} in {len(manifest.sha256)} files"
    yield "folder", str(package.folder)


def _parity(parity: Parity) -> str:
    """Shares of the spread; the largest of them first."""
    found = {name: getattr(parity, name) for name in ("logits", "cached", "batched", "positions")}
    stated = {name: value for name, value in found.items() if value is not None}
    tokens = f"; greedy tokens the same {parity.tokens}" if parity.tokens else ""
    each = ", ".join(f"{name} {value:.1e}" for name, value in stated.items())
    return f"{max(stated.values()):.1e} of the spread at most, beside {parity.reference} ({each}){tokens}"


def _loss(loss: Loss) -> str:
    tokens = f", likeliest tokens the same {loss.tokens}" if loss.tokens else ""
    return f"error beside fp32 {loss.logits:.2g}, batched beside alone {loss.batched:.1e}{tokens}"


def _peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def exported(folder: Path) -> dict[str, list[str]]:
    """Precisions by version."""
    made: dict[str, list[str]] = {}
    for version in versions(folder) if folder.is_dir() else ():
        for place in sorted((folder / version).iterdir()):
            with suppress(PackageError):
                made.setdefault(version, []).append(open_package(place).manifest.precision)
    return made
