"""`python -m loadtest.capacity --rate 200`: plan replicas and cost from a measured ramp.

A replica is simulated as slots that share its speed; the simulation is fitted to every other phase of the ramp and
compared with the rest. Then a day of traffic with a daily cycle and bursts is simulated on an autoscaled fleet, with
Headwaiter's policy as configured by `autoscale`, Serve's default and any policy from --policy. The report states
latency, rejections and utilisation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from loadtest.capacity.autoscaling_policies import (
    Policy,
    ServeDefaultPolicy,
    UnknownPolicyError,
    headwaiter_policy,
    load_policy,
)
from loadtest.capacity.fleet_simulation import FleetSettings, Traffic, simulate
from loadtest.capacity.latency_curve import Fit, InvalidRampError, MeasuredCurve, describe_agreement, max_rate_within
from loadtest.capacity.report import CapacityPlan, tables, write_html, write_json
from loadtest.capacity.sizing import size_fleet
from loadtest.traffic.cli_options import count, positive

_MAX_CALLS = 5e6  # simulated within minutes


class InfeasiblePlanError(Exception):
    """The simulation would take hours, or no rate meets the objective."""


def main() -> None:
    options, console = _options(), Console()
    try:
        plan = _make_plan(options, console)
    except (InvalidRampError, UnknownPolicyError, InfeasiblePlanError) as error:
        sys.exit(str(error))
    for table in tables(plan):
        console.print(table)
    console.print(plan.agreement)
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(plan, options.out / "capacity.json")
    write_html(plan, options.out / "capacity.html")
    console.print(f"Written: {options.out / 'capacity'}.html and .json", style="dim", highlight=False)


def _make_plan(options: argparse.Namespace, console: Console) -> CapacityPlan:
    traffic = Traffic(options.rate, options.daily_amplitude, options.bursts, options.burst_factor, hours=options.hours)
    calls = options.rate * options.hours * 3600
    if calls > _MAX_CALLS:
        raise InfeasiblePlanError(
            f"{options.rate:g} requests/s for {options.hours:g} hours are {calls / 1e6:.0f} million requests; the "
            f"maximum is {_MAX_CALLS / 1e6:g} million: reduce --hours"
        )
    measured = MeasuredCurve(options.ramp)
    p95 = (options.p95 or measured.objective["p95_ms"]) / 1e3
    errors = measured.objective["errors"]
    extra_policies = [load_policy(text) for text in options.policy]
    console.print("Fitting the simulation to the ramp", style="dim")
    fit = Fit(measured, options.max_queue_wait_ms / 1e3)
    comparisons, rate_per_replica = fit.comparisons(), max_rate_within(fit.profile, p95, errors)
    if rate_per_replica * p95 < 1e-3:
        raise InfeasiblePlanError(
            f"no rate meets p95 within {1e3 * p95:g} ms; a request on an idle replica takes "
            f"{1e3 * fit.profile.base_seconds:.0f} ms"
        )
    settings = FleetSettings(options.min, options.max, options.cold_start, p95)
    policies: list[Policy] = [
        headwaiter_policy(options.target, options.max_queue_wait_ms / 1e3, options.scale_down_delay_s),
        ServeDefaultPolicy(max(1.0, options.target * fit.profile.slots), downscale_delay=options.scale_down_delay_s),
        *extra_policies,
    ]
    days = []
    for policy in policies:
        console.print(f"Simulating a day at {traffic.mean:g} requests/s: {policy.name}", style="dim", highlight=False)
        days.append(simulate(fit.profile, traffic, policy, settings))
    average = size_fleet(options.rate, rate_per_replica, spare=options.spare, price=options.price)
    peak = size_fleet(traffic.peak, rate_per_replica, spare=options.spare, price=options.price)
    return CapacityPlan(
        measured,
        fit.profile,
        comparisons,
        describe_agreement(comparisons),
        average,
        peak,
        traffic,
        settings,
        days,
        options.price,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.capacity", description=__doc__)
    parser.add_argument(
        "ramp", type=Path, nargs="?", default=Path("build/load/ramp.json"), help="results of a ramp against one replica"
    )
    parser.add_argument("--rate", type=positive, required=True, help="mean requests per second to plan for")
    parser.add_argument("--p95", type=positive, metavar="MS", help="latency objective (default: that of the ramp)")
    parser.add_argument("--price", type=positive, help="price per replica hour, in any currency")
    parser.add_argument("--spare", type=int, default=1, help="spare replicas that may fail (1)")
    parser.add_argument(
        "--max-queue-wait-ms", type=positive, default=2000.0, help="limits.max_queue_wait_ms of serve.yaml"
    )
    parser.add_argument("--min", type=count, default=1, help="minimum replicas (1)")
    parser.add_argument("--max", type=count, default=1000, help="maximum replicas (1000)")
    parser.add_argument("--target", type=positive, default=0.7, help="autoscale.target of serve.yaml")
    parser.add_argument(
        "--scale-down-delay-s", type=positive, default=300.0, help="autoscale.scale_down_delay_s of serve.yaml"
    )
    parser.add_argument(
        "--cold-start", type=positive, default=20.0, metavar="S", help="seconds until a new replica answers (20)"
    )
    parser.add_argument("--hours", type=positive, default=24.0, help="simulated hours (24)")
    parser.add_argument(
        "--daily-amplitude", type=float, default=0.6, help="amplitude of the daily cycle relative to the mean (0.6)"
    )
    parser.add_argument("--bursts", type=int, default=6, help="bursts of five minutes each (6)")
    parser.add_argument(
        "--burst-factor", type=positive, default=3.0, help="rate during a burst relative to the usual rate (3)"
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="'MODULE:CLASS {…}'",
        help="additional Ray Serve autoscaling policy with its arguments as JSON; repeatable",
    )
    parser.add_argument("--out", type=Path, default=Path("build/load"), help="output directory (build/load)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
