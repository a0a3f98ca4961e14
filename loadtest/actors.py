"""Policies that compete: `python -m loadtest.actors NAME THREADS` is one."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from loadtest.entrant import Entrant, Task, compete
from loadtest.untrained import UNTRAINED

_SEED = 20


class Headwaiter:
    def __init__(self, threads: int) -> None:
        self._threads = threads

    def prepare(self, task: Task) -> str:
        from service import open_model

        self._model = open_model(UNTRAINED[task["model"]].package, threads=self._threads)
        self.play(task | {"episodes": 2})
        return f"{self._threads} threads, context of {self._model.manifest.policy.context} steps"

    def play(self, task: Task) -> list[list[float]]:
        """Milliseconds at each of the positions, in all episodes."""
        episodes = [self._episode(max(task["positions"])) for _ in range(task["episodes"])]
        return [[milliseconds[position - 1] for milliseconds in episodes] for position in task["positions"]]

    def _episode(self, length: int) -> list[float]:
        states = np.random.default_rng(_SEED).standard_normal((length, self._model.manifest.policy.state_size))
        milliseconds = []
        with self._model.episode(target_return=1.0) as episode:
            for index, state in enumerate(states):
                begun = time.perf_counter()
                episode.step(state, reward=0.01 if index else None)
                milliseconds.append(1000 * (time.perf_counter() - begun))
        return milliseconds


_ACTORS: dict[str, Callable[[int], Entrant]] = {"headwaiter fp32": Headwaiter}

if __name__ == "__main__":
    compete(_ACTORS, {"headwaiter": ("headwaiter", "onnxruntime")})
