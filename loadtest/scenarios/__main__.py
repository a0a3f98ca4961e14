"""`python -m loadtest.scenarios ramp`: headless scenarios against a running service.

`ramp` finds what the service carries within the objective; the others go by what it found, or by --rate. Each writes
NAME.json, NAME.csv (second by second) and NAME.html (verdict and plots) into --out.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import locust  # noqa: F401 - first: it makes everything after it wait with gevent's patience
from rich.console import Console

from loadtest.scenarios.files import carried, outcome, write_csv, write_json
from loadtest.scenarios.page import NoPageError, Page
from loadtest.scenarios.plan import SCENARIOS, Objective, Scenario
from loadtest.scenarios.report import write_html
from loadtest.scenarios.stage import Stage, UnansweredError
from loadtest.traffic.addresses import add_options, key, positive, share, ways
from loadtest.traffic.crowd import Way
from loadtest.traffic.guests import NoServiceError, Order, Table, seat
from loadtest.traffic.ways import Grpc, Http, make_ready

_FIRST_RATE = 1.0


class NoRateError(Exception):
    """It is not known what the service carries."""


def main() -> None:
    make_ready()
    options, console = _options(), Console()
    try:
        table = seat(options.grpc, options.models, seed=options.seed, key=key())
        for name in options.scenario:
            _play(name, table, options, console)
    except (NoServiceError, NoPageError, NoRateError, UnansweredError) as error:
        sys.exit(str(error))


def _play(name: str, table: Table, options: argparse.Namespace, console: Console) -> None:
    scenario = _scenario(name, options)
    ways = [_WAYS[way](options) for way in options.ways]
    console.print(f"{name}: {scenario.what}")
    tell = partial(console.print, style="dim", highlight=False)
    record = Stage(table, ways, Page(options.metrics), options.seed).play(scenario, tell)
    settings = {"rate": scenario.rate, "seconds": scenario.length, "ways": options.ways, "weights": options.models}
    found = outcome(scenario, record, table.guests, settings | {"seed": options.seed})
    options.out.mkdir(parents=True, exist_ok=True)
    for suffix, write in (("json", write_json), ("csv", write_csv), ("html", write_html)):
        write(found, options.out / f"{name}.{suffix}")
    console.print(found.verdict.sentence, style="green" if found.verdict.holds else "red", highlight=False)
    for doubt in found.doubts():
        console.print(doubt, style="yellow", highlight=False)
    tell(f"written to {options.out / name}.html, .json and .csv")


_WAYS: dict[str, Callable[[argparse.Namespace], Way[Order]]] = {
    "grpc": lambda options: Grpc(options.grpc, key=key()),
    "http": lambda options: Http(options.http, key=key()),
}


def _scenario(name: str, options: argparse.Namespace) -> Scenario:
    kind, objective = SCENARIOS[name], Objective(options.p95, options.errors)
    rate = options.rate
    if rate is None and kind.needs_rate:
        rate = carried(options.out / "ramp.json", objective)
        if rate is None:
            raise NoRateError(
                f"{name} goes by what the service carries: run `ramp` with the same objective first, or give --rate"
            )
    return kind(rate or _FIRST_RATE, options.seconds or kind.seconds, objective, options.most)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios", description=__doc__)
    parser.add_argument("scenario", nargs="+", choices=list(SCENARIOS))
    add_options(parser.add_argument)
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=["http://localhost:8080/metrics"],
        metavar="URL",
        help="pages of all nodes",
    )
    parser.add_argument("--ways", type=ways, default=("grpc",), metavar="grpc,http", help="grpc unless told")
    parser.add_argument("--rate", type=positive, help="calls a second that the service carries; where a ramp begins")
    parser.add_argument("--most", type=positive, default=math.inf, help="calls a second that a ramp tries")
    parser.add_argument("--seconds", type=positive, help="of a phase")
    parser.add_argument("--p95", type=positive, default=2000.0, metavar="MS", help="objective: 2000 unless told")
    parser.add_argument("--errors", type=share, default=0.01, metavar="SHARE", help="objective: 0.01 unless told")
    parser.add_argument("--out", type=Path, default=Path("build/load"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
