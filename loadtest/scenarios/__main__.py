"""`python -m loadtest.scenarios ramp`: run headless load-test scenarios against a service.

`ramp` finds the capacity within the objective; the other scenarios use that capacity or --rate. Each writes NAME.json,
NAME.csv (per second) and NAME.html (verdict and plots) into --out.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import locust  # noqa: F401 - first, because it monkey-patches blocking calls with gevent
from rich.console import Console

from loadtest.scenarios.definitions import SCENARIOS, Objective, Scenario
from loadtest.scenarios.metrics_endpoint import MetricsEndpoint, MetricsUnavailableError
from loadtest.scenarios.report import write_html
from loadtest.scenarios.result_files import ramp_capacity, scenario_result, write_csv, write_json
from loadtest.scenarios.runner import ScenarioRunner, UnfinishedCallsError
from loadtest.traffic.cli_options import add_options, api_key, positive, share, transports
from loadtest.traffic.open_loop import Transport
from loadtest.traffic.request_generators import LoadRequest, ServiceUnavailableError, WorkloadMix, build_workload
from loadtest.traffic.transports import GrpcTransport, HttpTransport, configure_gevent

_FIRST_RATE = 1.0


class UnknownCapacityError(Exception):
    """The capacity of the service is not known."""


def main() -> None:
    configure_gevent()
    options, console = _options(), Console()
    try:
        workload = build_workload(options.grpc, options.models, seed=options.seed, key=api_key())
        for name in options.scenario:
            _run_scenario(name, workload, options, console)
    except (ServiceUnavailableError, MetricsUnavailableError, UnknownCapacityError, UnfinishedCallsError) as error:
        sys.exit(str(error))


def _run_scenario(name: str, workload: WorkloadMix, options: argparse.Namespace, console: Console) -> None:
    scenario = _scenario(name, options)
    transports = [_TRANSPORTS[transport](options) for transport in options.transports]
    console.print(f"{name}: {scenario.description}")
    report_progress = partial(console.print, style="dim", highlight=False)
    record = ScenarioRunner(workload, transports, MetricsEndpoint(options.metrics), options.seed).run(
        scenario, report_progress
    )
    settings = {
        "rate": scenario.rate,
        "seconds": scenario.phase_seconds,
        "transports": options.transports,
        "weights": options.models,
    }
    result = scenario_result(scenario, record, workload.generators, settings | {"seed": options.seed})
    options.out.mkdir(parents=True, exist_ok=True)
    for suffix, write in (("json", write_json), ("csv", write_csv), ("html", write_html)):
        write(result, options.out / f"{name}.{suffix}")
    console.print(result.verdict.summary, style="green" if result.verdict.holds else "red", highlight=False)
    for warning in result.warnings():
        console.print(warning, style="yellow", highlight=False)
    report_progress(f"Written: {options.out / name}.html, .json and .csv")


_TRANSPORTS: dict[str, Callable[[argparse.Namespace], Transport[LoadRequest]]] = {
    "grpc": lambda options: GrpcTransport(options.grpc, key=api_key()),
    "http": lambda options: HttpTransport(options.http, key=api_key()),
}


def _scenario(name: str, options: argparse.Namespace) -> Scenario:
    scenario_class, objective = SCENARIOS[name], Objective(options.p95, options.errors)
    rate = options.rate
    if rate is None and scenario_class.needs_rate:
        rate = ramp_capacity(options.out / "ramp.json", objective)
        if rate is None:
            raise UnknownCapacityError(
                f"{name} requires the capacity of the service; run `ramp` with the same objective first, or set --rate"
            )
    return scenario_class(rate or _FIRST_RATE, options.seconds or scenario_class.seconds, objective, options.max_rate)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios", description=__doc__)
    parser.add_argument("scenario", nargs="+", choices=list(SCENARIOS))
    add_options(parser.add_argument)
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=["http://localhost:8080/metrics"],
        metavar="URL",
        help="metrics endpoints of all nodes",
    )
    parser.add_argument(
        "--transports", type=transports, default=("grpc",), metavar="grpc,http", help="transports to use (grpc)"
    )
    parser.add_argument("--rate", type=positive, help="capacity in requests per second; first rate of a ramp")
    parser.add_argument("--max-rate", type=positive, default=math.inf, help="highest rate of a ramp")
    parser.add_argument("--seconds", type=positive, help="duration of a phase")
    parser.add_argument("--p95", type=positive, default=2000.0, metavar="MS", help="latency objective (2000)")
    parser.add_argument("--errors", type=share, default=0.01, metavar="SHARE", help="error objective (0.01)")
    parser.add_argument("--out", type=Path, default=Path("build/load"), help="output directory (build/load)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
