"""Deploys the models of a service on a running Ray and prints what happens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headwaiter.cli.example_commands import KEY_VARIABLE, example_commands
from headwaiter.console import CommandConsole
from headwaiter.serving.cluster import Cluster, root_cause, wait_until_answering
from headwaiter.serving.config import Service
from headwaiter.serving.errors import LaunchError


def deploy(service: Service, cluster: Cluster, rendered: dict[str, Any], console: CommandConsole) -> None:
    """Deploy, print each application as it becomes ready, and return once all of them respond.

    Raises LaunchError for the first application that fails.
    """
    started = time.monotonic()
    unchanged = cluster.deploy(rendered)
    names = [application["name"] for application in rendered["applications"]]
    warnings: set[str] = set()
    with console.spinner(f"starting {', '.join(name for name in names if name not in unchanged)}"):
        for name, state in cluster.watch_states(names):
            if state.phase == "failed":
                raise LaunchError(f"{name} did not start: {root_cause(state.message)}; see the logs in {cluster.logs}.")
            if state.phase == "ready":
                console.print_done(f"{name} (unchanged)" if name in unchanged else name, time.monotonic() - started)
            elif state.message:
                warning = f"{name}: {root_cause(state.message)}."
                if warning not in warnings:  # every attempt to start a replica has the same cause
                    console.warn(warning)
                warnings.add(warning)
        wait_until_answering(service, names)


def print_warnings(service: Service, console: CommandConsole) -> None:
    """Warn about skipped models, precisions that are not available and missing authentication."""
    config = service.config
    for name in service.skipped_models:
        console.warn(f"{name} is skipped: its package does not exist and it is optional.")
    for name, model in config.models.items():
        precision = service.packages[name].manifest.precision
        if model.precision not in (None, precision):
            console.warn(f"{name} has no {model.precision} package; {precision} is served instead.")
    if service.keys is None and not service.is_local:
        console.warn(
            f"Ports {config.grpc.port} and {config.http.port} accept requests without authentication; "
            "`headwaiter key --append keys.txt` creates an API key, `auth: {keys: keys.txt}` requires it."
        )


def print_endpoints(service: Service, console: CommandConsole, logs: Path | str | None = None) -> None:
    config = service.config
    console.print_line()
    console.print_line(f"gRPC     localhost:{config.grpc.port}")
    console.print_line(f"HTTP     http://localhost:{config.http.port}/models")
    if logs:
        console.print_line(f"metrics  http://localhost:{config.metrics.port}/metrics")
        console.print_line(f"logs     {logs}")
    console.print_line()
    if service.keys:
        console.print_line(f"  export {KEY_VARIABLE}=…")
    for command in example_commands(service):
        console.print_line(f"  {command}")
    console.print_line()
