"""Contestants of `loadtest.attention`: an exported mixer in a process that has loaded nothing but its runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.entrant import Entrant, Task, compete

NAMES = (
    "softmax",
    "linformer",
    "performer",
    "reformer",
    "longformer",
    "synthesizer-dense",
    "synthesizer-random",
    "fnet",
)


class Mixing:
    def __init__(self, name: str, threads: int) -> None:
        import onnxruntime

        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = self._threads = threads
        self._name = name
        self._session: Any = None
        self._empty = _peak_mb()

    def prepare(self, task: Task) -> str:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(
            task["graphs"][self._name], self._options, providers=["CPUExecutionProvider"]
        )
        shape = self._session.get_inputs()[0].shape
        self._states = np.random.default_rng(0).standard_normal(shape, np.float32)
        self._run()
        return f"{self._threads} thread{'s' if self._threads > 1 else ''}"

    def play(self, task: Task) -> float:
        """The process's peak of memory so far, in MB, above what it needed before the mixer came."""
        for _ in range(task["calls"]):
            self._run()
        return _peak_mb() - self._empty

    def _run(self) -> None:
        self._session.run(None, {"states": self._states})


def _peak_mb() -> float:
    """Not what `getrusage` says: that may still be the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    entrants: dict[str, Callable[[int], Entrant]] = {name: partial(Mixing, name) for name in NAMES}
    compete(entrants, dict.fromkeys(NAMES, ("onnxruntime", "numpy")))
