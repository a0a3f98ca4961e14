"""The engine benchmark's results file; parts that a run does not measure keep their earlier results."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from loadtest.engine.benchmark_part import BenchmarkPart
from loadtest.engine.measurements import Measurement, merge_measurements
from loadtest.engine.targets import Target

FOLDER = Path(__file__).parent / "results"
_DIGITS = 4
_VECTOR_EXTENSIONS = ("amx_int8", "avx512_vnni", "avx512f", "avx_vnni", "avx2")  # best first


@dataclass(frozen=True, slots=True)
class PartResults:
    """The measurements of one part and the environment they were taken in."""

    description: str
    machine: dict[str, Any]
    versions: dict[str, dict[str, str]]  # by backend
    load_before: float  # load average before the last run
    rows: Sequence[Measurement]

    def merge_older(self, older: PartResults | None) -> PartResults:
        """Add older measurements of other settings if they were taken on the same machine."""
        if older is None or older.machine != self.machine:
            return self
        return replace(self, versions=older.versions | self.versions, rows=merge_measurements(older.rows, self.rows))


def load(file: Path, parts: Iterable[BenchmarkPart]) -> dict[str, PartResults]:
    """Return stored results by part name; empty if the file is missing or has no parts."""
    stored = json.loads(file.read_text(encoding="utf-8")).get("parts", {}) if file.is_file() else {}
    return {part.name: _parse_part(stored[part.name], part.row) for part in parts if part.name in stored}


def save(file: Path, measured: Mapping[str, PartResults], targets: Sequence[Target]) -> None:
    content = {
        "parts": {name: _part_content(part) for name, part in measured.items()},
        "targets": [
            {
                "target": target.title,
                "required": target.required,
                "measured": _rounded(target.measured),
                "result": target.result,
            }
            for target in targets
        ],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def machine(threads: int) -> dict[str, Any]:
    """Describe this machine. The vector extension is included because it decides int8 throughput."""
    flags = _cpu_info("flags").split()
    vectors = next((extension for extension in _VECTOR_EXTENSIONS if extension in flags), "")
    cpu = {"cpu": _cpu_info("model name"), "vectors": vectors}
    return cpu | {"cores": os.cpu_count(), "threads": threads, "python": platform.python_version()}


def _part_content(part: PartResults) -> dict[str, Any]:
    rows = [{name: _rounded(value) for name, value in asdict(row).items()} for row in part.rows]
    return {
        "what": part.description,
        "machine": part.machine,
        "load_before": _rounded(part.load_before),
        "versions": part.versions,
        "measured": rows,
    }


def _parse_part(content: dict[str, Any], row: type[Measurement]) -> PartResults:
    known = {field.name for field in fields(row)}
    rows = [row(**{name: value for name, value in stored.items() if name in known}) for stored in content["measured"]]
    return PartResults(content["what"], content["machine"], content["versions"], content["load_before"], rows)


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _cpu_info(key: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith(key)), platform.processor())
