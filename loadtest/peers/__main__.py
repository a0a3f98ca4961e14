"""`python -m loadtest.peers`: Headwaiter beside what others serve the same models with, on the same machine.

Each peer has a folder with its own pinned environment, built when it first takes part. All are asked by the same
client, one after another, round after round, every other round backwards: start, one caller, saturation, the highest
rate of Poisson arrivals with p99 within the limit, the latency at 80 % of that. Results go to loadtest/results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import locust  # noqa: F401 - first: it makes everything after it wait with gevent's patience
from rich.console import Console

from loadtest.peers.entrants import PEERS, Entrant, PeerError, entrants
from loadtest.peers.measure import Measured, measure
from loadtest.peers.table import content, drawn, rows
from loadtest.peers.weights import SUBJECTS, Subject, prepare
from loadtest.results import FOLDER
from loadtest.traffic.addresses import count, positive
from loadtest.traffic.ways import make_ready

_QUICK = {"rounds": 1, "seconds": 6.0, "models": ["opus-mt-zh-en", "vit-small"], "out": Path("build/peers/quick.json")}


def main() -> None:
    options, console = _options(), Console()
    make_ready()
    try:
        run = Run(options, console, entrants(options.peers))
    except PeerError as error:
        sys.exit(str(error))
    run.build()
    for name in options.models:
        run.compare(SUBJECTS[name])
    console.print(f"written to {options.out}")
    sys.exit(1 if run.lost else 0)


class Run:
    """A peer that cannot take part is lost with a sentence; the others go on."""

    def __init__(self, options: argparse.Namespace, console: Console, everyone: list[Entrant]) -> None:
        self.lost: set[str] = set()
        self._options, self._console, self._everyone = options, console, everyone

    def build(self) -> None:
        for each in self._everyone:
            self._tell(f"{each.name}: environment")
            with self._losing(each):
                each.build()

    def compare(self, subject: Subject) -> None:
        self._tell(f"{subject.name}: weights")
        prepare(subject)
        doing = [each for each in self._everyone if each.does(subject.task)]
        measured: list[Measured] = []
        load = os.getloadavg()[0]
        for index in range(self._options.rounds):
            for entrant in doing[:: -1 if index % 2 else 1]:
                if entrant.name not in self.lost:
                    with self._losing(entrant):
                        measured.append(self._measured(entrant, subject, index))
                        found = content(subject, doing, measured, self._options.seconds, load)
                        _save(self._options.out, subject, found)
        self._console.print(drawn(subject.name, subject.limit_ms, rows(doing, measured)))
        for each in doing:
            self._tell(f"{each.name}: {each.settings}")

    def _measured(self, entrant: Entrant, subject: Subject, index: int) -> Measured:
        told = f"{subject.name}, round {index + 1} of {self._options.rounds}, {entrant.name}"
        self._tell(f"{told}: start")
        cores, seconds = os.cpu_count() or 1, self._options.seconds
        with tempfile.TemporaryDirectory() as scratch, entrant.running(subject, cores, Path(scratch)) as running:
            return measure(entrant, subject, running, index, seconds, lambda text: self._tell(f"{told}: {text}"))

    @contextmanager
    def _losing(self, entrant: Entrant) -> Iterator[None]:
        try:
            yield
        except (PeerError, OSError) as error:
            self.lost.add(entrant.name)
            sentence = str(error) if isinstance(error, PeerError) else f"{entrant.name} broke off: {error}"
            self._console.print(sentence, style="red", highlight=False)

    def _tell(self, text: str) -> None:
        self._console.print(text, style="dim", highlight=False)


def _save(file: Path, subject: Subject, found: dict[str, Any]) -> None:
    """At once, beside what was measured of other models."""
    whole = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(whole | {subject.name: found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.peers", description=__doc__)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), metavar="NAME", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--models", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument(
        "--seconds", type=positive, default=15.0, help="of a measurement; up to 20 where it has few calls"
    )
    parser.add_argument("--quick", action="store_true", help="one round of short measurements, not into the results")
    parser.add_argument("--out", type=Path, default=FOLDER / "peers.json")
    if "--quick" in sys.argv:
        parser.set_defaults(**_QUICK)
    return parser.parse_args()


if __name__ == "__main__":
    main()
