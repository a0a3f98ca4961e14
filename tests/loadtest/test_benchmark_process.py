from __future__ import annotations

import pytest

from loadtest.benchmark_process import BackendTimings, BenchmarkProcess, BenchmarkProcessError, run_count, run_rounds
from loadtest.benchmark_worker import BenchmarkTask, pick_fastest
from loadtest.engine.__main__ import not_installed


class RecordingProcess(BenchmarkProcess):
    """Logs its runs to a shared list and reports the given durations."""

    def __init__(self, name: str, seconds: list[float], log: list[str], *, single_round: bool = False) -> None:
        self.name, self.single_round, self._seconds, self._log = name, single_round, iter(seconds), log

    def prepare(self, task: BenchmarkTask) -> str:
        self._log.append(f"prepare {self.name}")
        return f"ready for {task['items']}"

    def run_task(self, task: BenchmarkTask) -> tuple[float, list[int]]:
        self._log.append(self.name)
        return next(self._seconds), [task["items"]]


class ProgressRecorder:
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.run_count = 0

    def report_progress(self, text: str) -> None:
        self.messages.append(text)

    def run_finished(self) -> None:
        self.run_count += 1


def test_run_rounds_alternates_direction_and_runs_slow_backends_once() -> None:
    log: list[str] = []
    processes = [
        RecordingProcess("a", [3, 1, 2], log),
        RecordingProcess("b", [6, 4, 5], log),
        RecordingProcess("slow", [60], log, single_round=True),
    ]
    progress = ProgressRecorder()
    timings = run_rounds(processes, {"items": 7}, 3, progress)
    assert log == ["prepare a", "prepare b", "prepare slow", "a", "b", "slow", "b", "a", "a", "b"]
    assert [(timing.backend, timing.median, timing.settings) for timing in timings] == [
        ("a", 2, "ready for 7"),
        ("b", 5, "ready for 7"),
        ("slow", 60, "ready for 7"),
    ]
    assert timings[0].spread == 3
    assert timings[1].answers == [[7]] * 3
    assert progress.run_count == run_count(["a", "b", "slow"], ["slow"], 3) == 7


@pytest.mark.parametrize(("seconds", "median", "spread"), [([2.0], 2.0, 1.0), ([1, 4], 2.5, 4.0), ([9, 1, 3], 3, 9.0)])
def test_backend_timings_median_and_spread(seconds: list[float], median: float, spread: float) -> None:
    timings = BackendTimings("a", "", seconds)
    assert (timings.median, timings.spread) == (median, spread)


def test_benchmark_process_unknown_backend_raises_with_stderr() -> None:
    with pytest.raises(BenchmarkProcessError, match=r"(?s)unknown fp32 ended early.*KeyError"):
        BenchmarkProcess("unknown fp32", "loadtest.engine.policy_workers", 1)


def test_pick_fastest_single_configuration_is_not_run() -> None:
    assert pick_fastest([4], lambda configuration: pytest.fail(f"{configuration} was run")) == 4


def test_pick_fastest_runs_all_once_and_best_two_again() -> None:
    runs: list[int] = []
    pick_fastest([1, 2, 3, 4], runs.append)
    assert runs[:4] == [1, 2, 3, 4]
    assert len(set(runs[4:])) == len(runs[4:]) == 2


def test_not_installed_lists_missing_engines_once() -> None:
    assert not_installed(["headwaiter fp32", "missing fp32", "onnxruntime int8", "missing int8"]) == ["missing"]
