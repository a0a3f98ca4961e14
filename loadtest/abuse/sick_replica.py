"""Sick but alive: a replica that hangs, or whose engine fails every step, is replaced; few calls fail meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from headwaiter.serving.config import load_config
from loadtest.abuse.good_callers import BASELINE, GoodCallers, good_callers
from loadtest.abuse.scenario import OwnRun, OwnScenario
from loadtest.abuse.statistics import milliseconds
from loadtest.abuse.target import Target, wait_until
from loadtest.service_process import running_service, write_config

MAX_FAILED_SHARE = 0.05
_REPLICAS = 2
_REPLACED_SECONDS = 60.0  # Serve gives a silent process up after three checks of 10 s, see ray_config
_ATTEMPT_SECONDS = 2.0  # a client that knows how long its calls take abandons a silent attempt
_FAILING, _HUNG = "every step fails", "the process hangs (SIGSTOP)"


def run(abuse: OwnRun) -> None:
    sick_folder = abuse.folder / "sick"
    sick_folder.mkdir()
    model = _text_classifier(abuse)
    config = {model: {**abuse.models[model], "replicas": _REPLICAS, "resources": {"cpus": 0.25}}}
    program = (sys.executable, "-m", "loadtest.abuse.sick_service", str(sick_folder))
    with running_service(abuse.folder, config, program=program) as service:
        target = Target(service)
        with good_callers(service.grpc, [model], attempt_seconds=_ATTEMPT_SECONDS) as callers:
            callers.measure(BASELINE, abuse.options.scaled(10, 3))
            _measure(abuse, target, callers, model, _FAILING, lambda pid: (sick_folder / str(pid)).touch())
            if not abuse.options.is_short:  # Serve needs more than a minute to notice it
                _measure(abuse, target, callers, model, _HUNG, lambda pid: os.kill(pid, signal.SIGSTOP))


def _text_classifier(abuse: OwnRun) -> str:
    """The model that is made sick: a text classifier is small, and its calls are short."""
    file = abuse.folder / "all-models.yaml"
    write_config(file, {}, abuse.models)
    for name, package in load_config(file).packages.items():
        if package.manifest.task == "classification" and "length" in package.manifest.limits:
            return name
    raise ValueError(f"none of {', '.join(abuse.models)} is a text classifier; this scenario needs one")


def _measure(
    abuse: OwnRun, target: Target, callers: GoodCallers, model: str, sickness: str, infect: Callable[[int], object]
) -> None:
    """Make one of the replicas sick under load, and wait until another one has taken its place."""
    victim = target.service.replicas(model)[0]
    abuse.report.print_line(f"{abuse.name}: {sickness}")
    callers.begin(sickness)
    started = time.monotonic()
    infect(victim)

    def is_replaced() -> bool:
        return len(set(target.service.replicas(model)) - {victim}) >= _REPLICAS

    is_met = wait_until(is_replaced, _REPLACED_SECONDS)
    seconds = time.monotonic() - started
    time.sleep(abuse.options.scaled(5, 2))  # the new replica has to answer
    callers.begin(BASELINE)
    measured = f"{seconds:.0f} s" if is_met else f"not within {_REPLACED_SECONDS:.0f} s"
    abuse.add(f"{sickness}: replaced after", measured, f"within {_REPLACED_SECONDS:.0f} s", is_met=is_met)
    log = callers.read()[sickness]
    total = len(log.failed) + len(log.seconds)
    share = len(log.failed) / total
    abuse.add(
        f"{sickness}: failed calls of {_REPLICAS} replicas' callers, with retries",
        f"{len(log.failed):,} of {total:,} ({share:.1%}); p95 {milliseconds(log.p95)}",
        f"at most {MAX_FAILED_SHARE:.0%}",
        is_met=share <= MAX_FAILED_SHARE,
    )
    for failure in log.failed[:3]:
        abuse.report.print_line(f"  {failure}")
    with suppress(ProcessLookupError):  # Serve may still wait for it to end by itself
        os.kill(victim, signal.SIGKILL)


SCENARIO = OwnScenario("sick replica", "a replica that hangs or fails every step is replaced", run)
