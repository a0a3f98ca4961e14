"""Interface of a benchmark part: its backends, workloads and measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from loadtest.benchmark_process import BackendTimings
from loadtest.benchmark_worker import BenchmarkTask
from loadtest.engine.measurements import Measurement
from loadtest.random_models import RandomModel


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkOptions:
    rounds: int
    threads: int
    beams: tuple[int, ...]
    concurrency: tuple[int, ...]
    only: str = ""  # substring of the backend names to run


@dataclass(frozen=True, slots=True)
class Workload:
    """One task that all backends run."""

    title: str
    description: str  # of one run
    task: BenchmarkTask
    run_seconds: float  # estimate on two cores, used for progress
    prepare_seconds: float  # estimate for all backends together


class BenchmarkPart(ABC):
    name: ClassVar[str]
    description: ClassVar[str]
    module: ClassVar[str]  # runs one backend as `python -m`
    backends: ClassVar[tuple[str, ...]]
    slow: ClassVar[tuple[str, ...]] = ()  # backends limited to one round
    models: ClassVar[tuple[RandomModel, ...]] = ()
    row: ClassVar[type[Measurement]]

    @abstractmethod
    def workloads(self, options: BenchmarkOptions) -> list[Workload]: ...

    @abstractmethod
    def rows(self, workload: Workload, timings: Sequence[BackendTimings], when: str) -> list[Measurement]: ...

    def names(self, options: BenchmarkOptions) -> list[str]:
        return [name for name in self.backends if options.only in name]
