"""`python -m deploy.results`: writes RESULTS.md from results.json, which whoever measures adds to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.bench_tables import table
from loadtest.results import machine

DATA = Path(__file__).with_name("results.json")
PAGE = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    about: str
    command: str
    columns: tuple[str, ...]


PARTS = {
    "survival": Part(
        "Survival",
        "A head and two workers, machines of their own made of namespaces; tiny models, two replicas each, under load "
        "from the client library. A call counts as failed if its caller got an error, whatever was repeated before. "
        "Full strength: all replicas answer. A silent node is given up after 12 s (Ray's default: a minute).",
        "make survival",
        ("what was done", "calls answered", "failed", "longest call", "full strength after"),
    ),
    "scaling": Part(
        "Scaling of replicas",
        "opus-mt-zh-en int8, one node.",
        "python -m loadtest.elasticity",
        ("what", "after"),
    ),
    "nodes": Part(
        "Scaling of nodes",
        "A model whose replicas take a worker each, on Ray's autoscaler; workers are machines made of namespaces.",
        "make survival",
        ("what", "after"),
    ),
    "soak": Part(
        "Soak",
        "Mixed calls (streams and episodes too) of four callers to one replica of every model of the house; medians "
        "over the second and the last tenth of the calls.",
        "make soak",
        ("replica of", "memory early", "memory late", "growth", "descriptors early", "descriptors late"),
    ),
}


def record(part: str, rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Puts these rows in the place of the part's, and renews the page."""
    columns = PARTS[part].columns
    assert all(len(row) == len(columns) for row in rows), f"{part} has the columns {', '.join(columns)}"
    data = _read()
    data[part] = {"machine": machine(0), "note": note, "rows": [list(row) for row in rows]}
    DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    data = _read()
    parts = [_part(PARTS[name], data[name]) for name in PARTS if name in data]
    return "\n".join(["# Measured on one machine\n", *parts])


def _part(part: Part, found: dict[str, Any]) -> str:
    about = found["machine"]
    lines = [f"## {part.title}", "", part.about, f"`{part.command}`, on {about['cores']} × {about['cpu']}."]
    if found["note"]:
        lines.append(found["note"])
    return "\n".join([*lines, "", table(part.columns, found["rows"])]) + "\n"


def _read() -> dict[str, Any]:
    return json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else {}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
