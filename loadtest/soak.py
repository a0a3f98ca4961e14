"""`python -m loadtest.soak`: send many mixed requests and check replicas for growth in memory and open descriptors.

Serves one replica of every exported built-in model and writes deploy/RESULTS.md. Exits with 1 if a replica's memory
grew by more than 2 %, its number of open descriptors grew, or a request failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from headwaiter.console import CommandConsole
from loadtest.deployment_results import record
from loadtest.service_process import ServiceProcess, running_service
from loadtest.traffic.request_generators import build_workload
from loadtest.traffic.transports import GrpcTransport

BUILTIN_CONFIG = Path(__file__).parents[1] / "deploy" / "serve.yaml"
MAX_GROWTH = 0.02
_CALLERS = 4
_TENTHS = 10
_SAMPLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProcessSample:
    calls: int  # finished at the time of the sample
    megabytes: float
    descriptors: int


@dataclass
class Soak:
    """Sends requests from several threads until `calls` have been sent and samples every replica meanwhile."""

    service: ServiceProcess
    calls: int
    codes: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[ProcessSample]] = field(default_factory=dict)

    def run(self, models: list[str], show_progress: Callable[[int, str], None]) -> None:
        workload, lock, pending = build_workload(self.service.grpc, {}), threading.Lock(), iter(range(self.calls))

        def call() -> None:
            transport = GrpcTransport(self.service.grpc)
            while True:
                with lock:
                    if next(pending, None) is None:
                        break
                    request = workload.request()
                result = transport.send(request)
                with lock:
                    self.codes[result.code] += 1
            transport.close()

        callers = [threading.Thread(target=call) for _ in range(_CALLERS)]
        for caller in callers:
            caller.start()
        while any(caller.is_alive() for caller in callers):
            for name in models:
                self.samples.setdefault(name, []).append(self._sample(name))
            ended = self.codes.total()
            show_progress(ended, f"{ended:,} requests, {ended - self.codes['OK']:,} failed")
            time.sleep(_SAMPLE_SECONDS)

    def _sample(self, model: str) -> ProcessSample:
        (replica,) = self.service.replicas(model)
        resident = int(Path(f"/proc/{replica}/statm").read_text().split()[1])
        megabytes = resident * os.sysconf("SC_PAGE_SIZE") / 2**20
        return ProcessSample(self.codes.total(), megabytes, len(os.listdir(f"/proc/{replica}/fd")))


def median_sample(samples: Sequence[ProcessSample], calls: int, tenth: int) -> ProcessSample:
    """Return the median sample of one tenth of the requests; tenths are counted from 0."""
    selected = [sample for sample in samples if min(sample.calls * _TENTHS // calls, _TENTHS - 1) == tenth]
    megabytes = median(sample.megabytes for sample in selected)
    return ProcessSample(selected[-1].calls, megabytes, round(median(sample.descriptors for sample in selected)))


def evaluate(
    samples: Mapping[str, Sequence[ProcessSample]], codes: Mapping[str, int]
) -> tuple[list[list[str]], list[str]]:
    """Return table rows and failed checks; compares the second tenth with the last, as the first is warm-up."""
    rows, failures, calls = [], [], sum(codes.values())
    for name, replica_samples in samples.items():
        early, late = median_sample(replica_samples, calls, 1), median_sample(replica_samples, calls, _TENTHS - 1)
        growth = late.megabytes / early.megabytes - 1
        memory = (f"{early.megabytes:.1f} MB", f"{late.megabytes:.1f} MB", f"{growth:+.2%}")
        rows.append([name, *memory, str(early.descriptors), str(late.descriptors)])
        if growth > MAX_GROWTH:
            failures.append(f"memory of {name} grew by {growth:.1%}; the maximum is {MAX_GROWTH:.0%}")
        if late.descriptors > early.descriptors:
            failures.append(f"open descriptors of {name} grew from {early.descriptors} to {late.descriptors}")
    failures += [f"{count:,} requests failed with {code}" for code, count in codes.items() if code != "OK" and count]
    return rows, failures


def builtin_models(models: Path) -> dict[str, Any]:
    """Return the models of deploy/serve.yaml that are exported."""
    configured = yaml.safe_load(BUILTIN_CONFIG.read_text(encoding="utf-8"))["models"]
    return {
        name: {**model, "path": str((models / name).resolve())}
        for name, model in configured.items()
        if (models / name).is_dir()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--models", type=Path, default=Path("models"), help="directory of the model packages")
    arguments = parser.parse_args()
    models = builtin_models(arguments.models)
    if not models:
        parser.error(f"{arguments.models} has no packages; `headwaiter menu export` creates them")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, running_service(Path(folder), models) as service:
        soak = Soak(service, arguments.calls)
        with CommandConsole().progress("soak", arguments.calls) as show_progress:
            soak.run(list(models), show_progress)
    rows, failures = evaluate(soak.samples, soak.codes)
    minutes = (time.monotonic() - started) / 60
    note = f"{arguments.calls:,} requests in {minutes:.0f} minutes, {soak.codes['OK']:,} answered."
    record("soak", rows, f"{note} {'; '.join(failures) or 'All checks passed'}.")
    sys.stdout.write("\n".join([note, *failures, ""]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
