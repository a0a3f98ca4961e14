"""`python -m loadtest.capacity --rate 200`: what a ramp measured, turned into replicas and cost.

A replica is simulated as rows that share its speed; the simulation is fitted to every other phase of the ramp and
compared with the rest. Then a day of traffic with a night, a noon and bursts goes to a fleet that scales itself, by our
policy as `autoscale` sets it, by Serve's default and by any other that is given: how long callers wait, and what stands
idle.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from loadtest.capacity.curve import Fit, Measured, NoCurveError, how_well, within
from loadtest.capacity.day import Settings, Traffic, simulate
from loadtest.capacity.need import need
from loadtest.capacity.policies import NoPolicyError, Policy, ServeDefault, named, ours
from loadtest.capacity.report import Findings, tables, write_html, write_json
from loadtest.traffic.addresses import count, positive

_MOST_CALLS = 5e6  # that are simulated in minutes


class TooMuchError(Exception):
    """A day that would take hours to simulate, or an objective that nothing meets."""


def main() -> None:
    options, console = _options(), Console()
    try:
        findings = _findings(options, console)
    except (NoCurveError, NoPolicyError, TooMuchError) as error:
        sys.exit(str(error))
    for table in tables(findings):
        console.print(table)
    console.print(findings.agreement)
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(findings, options.out / "capacity.json")
    write_html(findings, options.out / "capacity.html")
    console.print(f"written to {options.out / 'capacity'}.html and .json", style="dim", highlight=False)


def _findings(options: argparse.Namespace, console: Console) -> Findings:
    traffic = Traffic(options.rate, options.swing, options.bursts, options.burst_times, hours=options.hours)
    calls = options.rate * options.hours * 3600
    if calls > _MOST_CALLS:
        raise TooMuchError(
            f"{options.rate:g} calls a second for {options.hours:g} hours are {calls / 1e6:.0f} million to simulate; "
            f"{_MOST_CALLS / 1e6:g} million are the limit: give fewer --hours"
        )
    measured = Measured(options.ramp)
    p95 = (options.p95 or measured.objective["p95_ms"]) / 1e3
    errors = measured.objective["errors"]
    others = [named(each) for each in options.policy]
    console.print("fitting the simulation to the ramp", style="dim")
    fit = Fit(measured, options.wait_ms / 1e3)
    compared, carries = fit.compared(), within(fit.pace, p95, errors)
    if carries * p95 < 1e-3:
        raise TooMuchError(
            f"no rate meets p95 within {1e3 * p95:g} ms: alone, a call takes {1e3 * fit.pace.alone:.0f} ms"
        )
    settings = Settings(options.min, options.max, options.cold_start, p95)
    policies: list[Policy] = [
        ours(options.target, options.wait_ms / 1e3, options.shrink_s),
        ServeDefault(max(1.0, options.target * fit.pace.rows), down_delay=options.shrink_s),
        *others,
    ]
    days = []
    for policy in policies:
        console.print(f"a day of {traffic.mean:g} calls a second: {policy.name}", style="dim", highlight=False)
        days.append(simulate(fit.pace, traffic, policy, settings))
    flat = need(options.rate, carries, spare=options.spare, price=options.price)
    peak = need(traffic.peak, carries, spare=options.spare, price=options.price)
    return Findings(
        measured, fit.pace, compared, how_well(compared), flat, peak, traffic, settings, days, options.price
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.capacity", description=__doc__)
    parser.add_argument("ramp", type=Path, nargs="?", default=Path("build/load/ramp.json"), help="of one replica")
    parser.add_argument("--rate", type=positive, required=True, help="calls a second to plan for, on average")
    parser.add_argument("--p95", type=positive, metavar="MS", help="objective; the ramp's unless told")
    parser.add_argument("--price", type=positive, help="of a replica for an hour, in any currency")
    parser.add_argument("--spare", type=int, default=1, help="replicas that may fail; 1 unless told")
    parser.add_argument("--wait-ms", type=positive, default=2000.0, help="limits.wait_ms of serve.yaml")
    parser.add_argument("--min", type=count, default=1, help="replicas")
    parser.add_argument("--max", type=count, default=1000, help="replicas")
    parser.add_argument("--target", type=positive, default=0.7, help="autoscale.target of serve.yaml")
    parser.add_argument("--shrink-s", type=positive, default=300.0, help="autoscale.shrink_s of serve.yaml")
    parser.add_argument("--cold-start", type=positive, default=20.0, metavar="S", help="until a new replica answers")
    parser.add_argument("--hours", type=positive, default=24.0)
    parser.add_argument("--swing", type=float, default=0.6, help="of a day, as a share of the average")
    parser.add_argument("--bursts", type=int, default=6, help="in a day, of five minutes each")
    parser.add_argument("--burst-times", type=positive, default=3.0)
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="'MODULE:CLASS {…}'",
        help="beside these, any policy in the form that Ray Serve calls, with its arguments as JSON",
    )
    parser.add_argument("--out", type=Path, default=Path("build/load"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
