"""`python -m loadtest.soak`: very many mixed calls, and whether replicas grow by them, in memory or open descriptors.

Serves one replica of every model of the house that is exported, asks all by turns, and writes deploy/RESULTS.md.
Exit 1 if a replica grew by more than 2 %, holds more descriptors than before, or a call failed.
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

from deploy.results import record
from export.console import progress
from loadtest.served import Service, serving
from loadtest.traffic.guests import seat
from loadtest.traffic.ways import Grpc

HOUSE = Path(__file__).parents[1] / "deploy" / "serve.yaml"
MOST_GROWTH = 0.02
_CALLERS = 4
_TENTHS = 10
_SAMPLE_SECONDS = 1.0
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    calls: int  # that had ended by then
    megabytes: float
    descriptors: int


@dataclass
class Soak:
    """Callers who ask by turns until enough was asked, and samples of every replica meanwhile."""

    service: Service
    calls: int
    codes: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def run(self, models: list[str], watch: Callable[[int, str], None]) -> None:
        table, lock, asked = seat(self.service.grpc, {}), threading.Lock(), iter(range(self.calls))

        def call() -> None:
            way = Grpc(self.service.grpc)
            while True:
                with lock:
                    if next(asked, None) is None:
                        break
                    order = table.order()
                outcome = way.send(order)
                with lock:
                    self.codes[outcome.code] += 1
            way.close()

        callers = [threading.Thread(target=call) for _ in range(_CALLERS)]
        for each in callers:
            each.start()
        while any(each.is_alive() for each in callers):
            for name in models:
                self.samples.setdefault(name, []).append(self._sample(name))
            ended = self.codes.total()
            watch(ended, f"{ended:,} calls, {ended - self.codes['OK']:,} not answered")
            time.sleep(_SAMPLE_SECONDS)

    def _sample(self, model: str) -> Sample:
        (replica,) = self.service.replicas(model)
        resident = int(Path(f"/proc/{replica}/statm").read_text().split()[1])
        return Sample(self.codes.total(), resident * _PAGE_MB, len(os.listdir(f"/proc/{replica}/fd")))


def usual(samples: Sequence[Sample], calls: int, tenth: int) -> Sample:
    """What was usual during this tenth of the calls, counted from 0."""
    found = [each for each in samples if min(each.calls * _TENTHS // calls, _TENTHS - 1) == tenth]
    megabytes = median(each.megabytes for each in found)
    return Sample(found[-1].calls, megabytes, round(median(each.descriptors for each in found)))


def judged(samples: Mapping[str, Sequence[Sample]], codes: Mapping[str, int]) -> tuple[list[list[str]], list[str]]:
    """Rows for the page, and what is not as it should be. The first tenth is for warming up."""
    rows, wrong, calls = [], [], sum(codes.values())
    for name, found in samples.items():
        early, late = usual(found, calls, 1), usual(found, calls, _TENTHS - 1)
        growth = late.megabytes / early.megabytes - 1
        memory = (f"{early.megabytes:.1f} MB", f"{late.megabytes:.1f} MB", f"{growth:+.2%}")
        rows.append([name, *memory, str(early.descriptors), str(late.descriptors)])
        if growth > MOST_GROWTH:
            wrong.append(f"{name} grew by {growth:.1%} and {MOST_GROWTH:.0%} is allowed")
        if late.descriptors > early.descriptors:
            wrong.append(f"{name} went from {early.descriptors} open descriptors to {late.descriptors}")
    wrong += [f"{count:,} calls ended with {code}" for code, count in codes.items() if code != "OK" and count]
    return rows, wrong


def house(models: Path) -> dict[str, Any]:
    """What deploy/serve.yaml serves, as far as it is exported."""
    told = yaml.safe_load(HOUSE.read_text(encoding="utf-8"))["models"]
    return {
        name: {**model, "path": str((models / name).resolve())}
        for name, model in told.items()
        if (models / name).is_dir()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--models", type=Path, default=Path("models"), help="where packages are")
    given = parser.parse_args()
    told = house(given.models)
    if not told:
        parser.error(f"{given.models} has no package; `headwaiter menu export` makes them")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), told) as service:
        soak = Soak(service, given.calls)
        with progress("soak", given.calls) as show:
            soak.run(list(told), show)
    rows, wrong = judged(soak.samples, soak.codes)
    note = f"{given.calls:,} calls in {(time.monotonic() - begun) / 60:.0f} minutes, {soak.codes['OK']:,} answered."
    record("soak", rows, f"{note} {'; '.join(wrong) or 'All as it should be'}.")
    sys.stdout.write("\n".join([note, *wrong, ""]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
