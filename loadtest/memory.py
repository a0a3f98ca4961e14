"""`python -m loadtest.memory`: resident memory and speed over random input shapes, by settings of ONNX Runtime.

Every measurement runs the same random shapes in a process of its own. `--record` writes deploy/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from headwaiter.engine.session import Arrays
from headwaiter.package.manifest import Package, open_package, padded_length
from loadtest.random_models import DETR, MEDIUM_BERT, RandomModel

_MODELS: dict[str, RandomModel] = {model.name: model for model in (MEDIUM_BERT, DETR)}
_SETTINGS = ("arena", "arena, no pattern", "arena as requested", "arena, shrunk after each run", "no arena")
_ENGINE_SETTINGS = {MEDIUM_BERT.name: "arena", DETR.name: "no arena"}  # as chosen in engine/session.py
_THREADS, _SEED, _BATCH_TOKENS, _SIDES = 2, 7, 512, (64, 480)
_MB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=3000, help="runs of each measurement")
    parser.add_argument("--models", nargs="*", default=list(_MODELS), choices=list(_MODELS))
    parser.add_argument("--settings", nargs="*", default=list(_SETTINGS), choices=_SETTINGS)
    parser.add_argument("--record", action="store_true", help="write deploy/RESULTS.md")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SETTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, setting = options.one
        sys.stdout.write(json.dumps(_measure(name, setting, options.shapes)))
        return
    rows = []
    for name in options.models:
        _ensure_exported(_MODELS[name])
        for setting in options.settings:
            measured = _measure_in_process(name, setting, options.shapes)
            row = _row(name, setting, options.shapes, measured)
            sys.stdout.write(" | ".join(row) + "\n")
            sys.stdout.flush()
            rows.append(row)
    if options.record:
        from loadtest.deployment_results import record

        record("memory", rows, "Others computed on the machine meanwhile.")


def _ensure_exported(model: RandomModel) -> None:
    from headwaiter.console import CommandConsole

    model.ensure_exported(CommandConsole().step)


def _measure_in_process(name: str, setting: str, shapes: int) -> dict[str, float]:
    command = [sys.executable, "-m", "loadtest.memory", "--shapes", str(shapes), "--one", name, setting]
    measured: dict[str, float] = json.loads(subprocess.check_output(command))
    return measured


def _row(name: str, setting: str, shapes: int, measured: dict[str, float]) -> list[str]:
    memory = [f"{measured[stage]:,.0f} MB" for stage in ("loaded", "tenth", "half", "end")]
    label = f"**{setting}**" if setting == _ENGINE_SETTINGS[name] else setting
    return [name, label, f"{shapes:,}", *memory, f"{measured['seconds']:,.1f} s"]


def _measure(name: str, setting: str, shapes: int) -> dict[str, float]:
    package = open_package(_MODELS[name].package)
    rng = np.random.default_rng(_SEED)
    session, run_options = _open(package, setting)
    measured = {"loaded": _resident_mb()}
    stages = {shapes // 10: "tenth", shapes // 2: "half", shapes: "end"}
    seconds = 0.0
    for count in range(1, shapes + 1):
        feeds = _random_text(package, rng) if "tokens" in _input_names(package) else _random_image(rng)
        start = time.perf_counter()
        session.run(None, feeds, run_options)
        seconds += time.perf_counter() - start
        if count in stages:
            measured[stages[count]] = _resident_mb()
    return measured | {"seconds": seconds}


def _open(package: Package, setting: str) -> tuple[Any, Any]:
    """As `engine/session.py` opens the graph of a model that runs a single forward pass, apart from the setting."""
    options, run_options = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = _THREADS, 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.enable_cpu_mem_arena = setting != "no arena"
    options.enable_mem_pattern = setting == "arena"
    provider: Any = "CPUExecutionProvider"
    if setting == "arena as requested":
        provider = (provider, {"arena_extend_strategy": "kSameAsRequested"})
    if setting == "arena, shrunk after each run":
        run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    graph = package.manifest.graphs["model"]
    return onnxruntime.InferenceSession(package.file(graph.file), options, providers=[provider]), run_options


def _input_names(package: Package) -> set[str]:
    return {port.name for port in package.manifest.graphs["model"].inputs}


def _random_text(package: Package, rng: np.random.Generator) -> Arrays:
    """A batch as the engine forms it: texts of similar length, padded, within its budget of tokens."""
    length = int(rng.integers(4, package.manifest.limits["length"] + 1))
    padded = min(padded_length(length), package.manifest.limits["length"])
    rows = int(rng.integers(1, max(1, _BATCH_TOKENS // padded) + 1))
    tokens = rng.integers(5, 1000, (rows, padded))
    return {
        "tokens": tokens,
        "segments": np.zeros_like(tokens),
        "lengths": np.full(rows, length, np.int32),
    }


def _random_image(rng: np.random.Generator) -> Arrays:
    height, width = rng.integers(*_SIDES, size=2)
    return {"pixels": rng.normal(size=(1, 3, height, width)).astype(np.float32)}


def _resident_mb() -> float:
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024 / _MB


if __name__ == "__main__":
    main()
