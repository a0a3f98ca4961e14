"""Backends of the policy benchmark; `python -m loadtest.engine.policy_workers NAME THREADS` runs one."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from loadtest.benchmark_worker import BenchmarkTask, BenchmarkWorker, run_worker
from loadtest.random_models import RANDOM_MODELS

_SEED = 20


class Headwaiter:
    def __init__(self, threads: int) -> None:
        self._threads = threads

    def prepare(self, task: BenchmarkTask) -> str:
        from headwaiter import open_model

        self._model = open_model(RANDOM_MODELS[task["model"]].package, threads=self._threads)
        self.run_task(task | {"episodes": 2})
        return f"{self._threads} threads, context of {self._model.manifest.policy.context} steps"

    def run_task(self, task: BenchmarkTask) -> list[list[float]]:
        """Return the milliseconds of each episode's step, by position."""
        episodes = [self._episode(max(task["positions"])) for _ in range(task["episodes"])]
        return [[milliseconds[position - 1] for milliseconds in episodes] for position in task["positions"]]

    def _episode(self, length: int) -> list[float]:
        states = np.random.default_rng(_SEED).standard_normal((length, self._model.manifest.policy.state_size))
        milliseconds = []
        with self._model.episode(target_return=1.0) as episode:
            for index, state in enumerate(states):
                started = time.perf_counter()
                episode.step(state, reward=0.01 if index else None)
                milliseconds.append(1000 * (time.perf_counter() - started))
        return milliseconds


_BACKENDS: dict[str, Callable[[int], BenchmarkWorker]] = {"headwaiter fp32": Headwaiter}

if __name__ == "__main__":
    run_worker(_BACKENDS, {"headwaiter": ("headwaiter", "onnxruntime")})
