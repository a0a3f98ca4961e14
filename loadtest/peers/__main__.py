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
from collections.abc import Callable
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
    tell = lambda text: console.print(text, style="dim", highlight=False)  # noqa: E731
    try:
        taking_part = entrants(options.peers)
        for each in taking_part:
            tell(f"{each.name}: environment")
            each.build()
        for name in options.models:
            _compare(SUBJECTS[name], taking_part, options, console, tell)
    except PeerError as error:
        sys.exit(str(error))
    console.print(f"written to {options.out}")


def _compare(
    subject: Subject,
    all_entrants: list[Entrant],
    options: argparse.Namespace,
    console: Console,
    tell: Callable[[str], None],
) -> None:
    tell(f"{subject.name}: weights")
    prepare(subject)
    taking_part = [each for each in all_entrants if each.does(subject.task)]
    measured: list[Measured] = []
    load = os.getloadavg()[0]
    for index in range(options.rounds):
        for entrant in taking_part[:: -1 if index % 2 else 1]:
            measured.append(_measured(entrant, subject, index, options, tell))
            _save(options.out, subject, content(subject, taking_part, measured, options.seconds, load))
    console.print(drawn(subject.name, subject.limit_ms, rows(taking_part, measured)))
    for each in taking_part:
        tell(f"{each.name}: {each.settings}")


def _measured(
    entrant: Entrant, subject: Subject, index: int, options: argparse.Namespace, tell: Callable[[str], None]
) -> Measured:
    told = f"{subject.name}, round {index + 1} of {options.rounds}, {entrant.name}"
    tell(f"{told}: start")
    with tempfile.TemporaryDirectory() as scratch, entrant.running(subject, os.cpu_count() or 1, Path(scratch)) as it:
        return measure(entrant, subject, it, index, options.seconds, lambda text: tell(f"{told}: {text}"))


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
    parser.add_argument("--seconds", type=positive, default=15.0, help="of a measurement")
    parser.add_argument("--quick", action="store_true", help="one round of short measurements, not into the results")
    parser.add_argument("--out", type=Path, default=FOLDER / "peers.json")
    if "--quick" in sys.argv:
        parser.set_defaults(**_QUICK)
    return parser.parse_args()


if __name__ == "__main__":
    main()
