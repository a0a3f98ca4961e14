"""The worker side of a benchmark process: reads tasks from stdin and writes replies to stdout as JSON lines."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

BenchmarkTask = dict[str, Any]
Configuration = TypeVar("Configuration")


class BenchmarkWorker(Protocol):
    def prepare(self, task: BenchmarkTask) -> str:
        """Set up for tasks like this one with the fastest configuration and return its description."""

    def run_task(self, task: BenchmarkTask) -> Any:
        """Run the task; this call is timed."""


def run_worker(workers: dict[str, Callable[[int], BenchmarkWorker]], packages: Mapping[str, tuple[str, ...]]) -> None:
    """Serve as `python -m MODULE NAME THREADS`; report the versions of each engine's `packages`."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps library output apart from replies
    name, threads = sys.argv[1], int(sys.argv[2])
    worker = workers[name](threads)
    _reply(replies, {package: importlib.metadata.version(package) for package in packages[name.split()[0]]})
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            _reply(replies, worker.prepare(request["prepare"]))
            continue
        started = time.perf_counter()
        answer = worker.run_task(request["run_task"])
        _reply(replies, {"seconds": time.perf_counter() - started, "answer": answer})


def pick_fastest(configurations: Sequence[Configuration], run: Callable[[Configuration], object]) -> Configuration:
    """Time each configuration once and the two fastest again, so that a single disturbance does not decide."""
    if len(configurations) == 1:
        return configurations[0]
    seconds = {configuration: _seconds(run, configuration) for configuration in configurations}
    for configuration in sorted(seconds, key=lambda configuration: seconds[configuration])[:2]:
        seconds[configuration] = min(seconds[configuration], _seconds(run, configuration))
    return min(seconds, key=lambda configuration: seconds[configuration])


def _seconds(run: Callable[[Configuration], object], configuration: Configuration) -> float:
    started = time.perf_counter()
    run(configuration)
    return time.perf_counter() - started


def _reply(replies: Any, content: Any) -> None:
    replies.write(json.dumps(content, default=_to_json) + "\n")
    replies.flush()


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be serialised in a reply; expected JSON values or arrays")
