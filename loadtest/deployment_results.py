"""`python -m loadtest.deployment_results`: write deploy/RESULTS.md from its results.json; `record` adds to both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwaiter_export.generated_sections import table
from loadtest.results_file import machine

_FOLDER = Path(__file__).parents[1] / "deploy"
DATA, REPORT = _FOLDER / "results.json", _FOLDER / "RESULTS.md"


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    description: str
    command: str
    columns: tuple[str, ...]


PARTS = {
    "fault_injection": Part(
        "Fault injection",
        "A head and two workers in separate network namespaces; tiny models with two replicas each, under load from "
        "the client library. A request counts as failed if the client library raised an error after its retries. "
        "Recovered: all replicas answer again. An unresponsive node is removed after 12 s (Ray's default: one minute).",
        "make fault-injection",
        ("fault", "requests answered", "failed", "longest request", "recovered after"),
    ),
    "scaling": Part(
        "Scaling of replicas",
        "opus-mt-zh-en int8, one node.",
        "python -m loadtest.elasticity",
        ("event", "after"),
    ),
    "nodes": Part(
        "Scaling of nodes",
        "A model with one replica per worker, on Ray's autoscaler; workers run in separate network namespaces.",
        "make fault-injection",
        ("event", "after"),
    ),
    "memory": Part(
        "Memory over many shapes",
        "Resident memory of one process that runs one graph on inputs of random sizes: batches of texts of 4 to 512 "
        "tokens (BERT of 8 layers of width 512), and images of 64 to 479 pixels a side (DETR of width 128). All rows "
        "of a model have the same inputs. The engine uses the setting in bold.",
        "python -m loadtest.memory --record",
        ("model", "setting", "runs", "loaded", "after a tenth", "after half", "at the end", "run time"),
    ),
    "soak": Part(
        "Soak",
        "Mixed requests, including streams and episodes, from four clients to one replica of each built-in model; "
        "medians over the second and the last tenth of the requests.",
        "make soak",
        ("model", "memory, start", "memory, end", "growth", "descriptors, start", "descriptors, end"),
    ),
    "abuse": Part(
        "Abuse",
        "Hostile behaviour against the built-in models on Ray, over real sockets, beside callers that behave well. "
        "Their requests count as failed if the client library raised an error after its retries. Attackers, callers "
        "and service share the cores of one machine. Memory: growth of a replica's resident memory to its peak.",
        "make abuse",
        ("scenario", "what", "measured", "expected"),
    ),
}


def record(part: str, rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Replace the rows of a part and rewrite RESULTS.md."""
    columns = PARTS[part].columns
    assert all(len(row) == len(columns) for row in rows), f"every row of {part} needs the columns {', '.join(columns)}"
    data = _read()
    data[part] = {"machine": machine(0), "note": note, "rows": [list(row) for row in rows]}
    DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    REPORT.write_text(report(), encoding="utf-8")


def recorded_rows(part: str) -> list[list[str]]:
    """Return the rows that were recorded last; empty if there are none."""
    rows: list[list[str]] = _read().get(part, {}).get("rows", [])
    return rows


def report() -> str:
    data = _read()
    parts = [_part(PARTS[name], data[name]) for name in PARTS if name in data]
    return "\n".join(["# Measurements on one machine\n", *parts])


def _part(part: Part, result: dict[str, Any]) -> str:
    machine_info = result["machine"]
    hardware = f"{machine_info['cores']} × {machine_info['cpu']}"
    lines = [f"## {part.title}", "", part.description, f"`{part.command}`, on {hardware}."]
    if result["note"]:
        lines.append(result["note"])
    return "\n".join([*lines, "", table(part.columns, result["rows"])]) + "\n"


def _read() -> dict[str, Any]:
    return json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else {}


if __name__ == "__main__":
    REPORT.write_text(report(), encoding="utf-8")
