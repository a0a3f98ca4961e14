"""Worker of `loadtest.attention`: runs one exported mixer in a process that loads only the runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.benchmark_worker import BenchmarkTask, BenchmarkWorker, run_worker

MIXER_NAMES = (
    "softmax",
    "linformer",
    "performer",
    "reformer",
    "longformer",
    "synthesizer-dense",
    "synthesizer-random",
    "fnet",
)


class MixerWorker:
    def __init__(self, name: str, threads: int) -> None:
        import onnxruntime

        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = self._threads = threads
        self._name = name
        self._session: Any = None
        self._baseline_mb = _peak_mb()

    def prepare(self, task: BenchmarkTask) -> str:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(
            task["graphs"][self._name], self._options, providers=["CPUExecutionProvider"]
        )
        shape = self._session.get_inputs()[0].shape
        self._states = np.random.default_rng(0).standard_normal(shape, np.float32)
        self._run()
        return f"{self._threads} thread{'s' if self._threads > 1 else ''}"

    def run_task(self, task: BenchmarkTask) -> float:
        """Return the peak memory so far in MB, above the baseline before the mixer was loaded."""
        for _ in range(task["calls"]):
            self._run()
        return _peak_mb() - self._baseline_mb

    def _run(self) -> None:
        self._session.run(None, {"states": self._states})


def _peak_mb() -> float:
    """Return the peak resident memory from /proc; `getrusage` may still report the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    workers: dict[str, Callable[[int], BenchmarkWorker]] = {name: partial(MixerWorker, name) for name in MIXER_NAMES}
    run_worker(workers, dict.fromkeys(MIXER_NAMES, ("onnxruntime", "numpy")))
