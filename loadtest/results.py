"""What was measured, as a file: parts that were not measured again stay as they are."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from loadtest.part import Part
from loadtest.rows import Row, merged
from loadtest.targets import Target

FOLDER = Path(__file__).parent / "results"
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """A part's rows, and where and with what they were measured."""

    what: str
    machine: dict[str, Any]
    versions: dict[str, dict[str, str]]  # of each contestant
    load_before: float  # what else was being computed, in cores, before the last run
    rows: Sequence[Row]

    def after(self, older: Measured | None) -> Measured:
        """With the older rows of other settings, if they come from the same machine."""
        if older is None or older.machine != self.machine:
            return self
        return replace(self, versions=older.versions | self.versions, rows=merged(older.rows, self.rows))


def load(file: Path, parts: Iterable[Part]) -> dict[str, Measured]:
    """By the names of parts; nothing from a file that is not there or was written before there were parts."""
    stored = json.loads(file.read_text(encoding="utf-8")).get("parts", {}) if file.is_file() else {}
    return {part.name: _measured(stored[part.name], part.row) for part in parts if part.name in stored}


def save(file: Path, measured: Mapping[str, Measured], targets: Sequence[Target]) -> None:
    content = {
        "parts": {name: _content(part) for name, part in measured.items()},
        "targets": [
            {"target": t.title, "wanted": t.wanted, "measured": _rounded(t.measured), "result": t.result}
            for t in targets
        ],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


_VECTORS = ("amx_int8", "avx512_vnni", "avx512f", "avx_vnni", "avx2")  # the best first


def machine(threads: int) -> dict[str, Any]:
    """Machines of one name differ in what decides most here: how many bytes one instruction multiplies."""
    cpu = {"cpu": _cpu("model name"), "vectors": next((kind for kind in _VECTORS if kind in _cpu("flags").split()), "")}
    return cpu | {"cores": os.cpu_count(), "threads": threads, "python": platform.python_version()}


def _content(part: Measured) -> dict[str, Any]:
    rows = [{name: _rounded(value) for name, value in asdict(row).items()} for row in part.rows]
    return {
        "what": part.what,
        "machine": part.machine,
        "load_before": _rounded(part.load_before),
        "versions": part.versions,
        "measured": rows,
    }


def _measured(content: dict[str, Any], row: type[Row]) -> Measured:
    known = {field.name for field in fields(row)}
    rows = [row(**{name: value for name, value in each.items() if name in known}) for each in content["measured"]]
    return Measured(content["what"], content["machine"], content["versions"], content["load_before"], rows)


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _cpu(what: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith(what)), platform.processor())
