"""The command `headwaiter status`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from headwaiter.console import CommandConsole

if TYPE_CHECKING:
    from headwaiter.serving.status import ModelStatus

_ADDRESS = re.compile(r"[^/]+:[0-9]+")
_STYLES = {"ready": "green", "starting": "yellow", "failed": "red", "stopping": "yellow"}


def status_command(
    target: Annotated[
        str, typer.Argument(help="Configuration file of a service on this machine, or HOST:PORT of gRPC.")
    ] = "serve.yaml",
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Ask the running Ray cluster (RAY_ADDRESS) instead of a local service.")
    ] = False,
    key: Annotated[
        str | None, typer.Option(help="With HOST:PORT: API key, if the service requires one.", envvar="HEADWAITER_KEY")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what is served: versions, precisions, replicas, and why a model does not start.

    Exits with 1 if a model is not ready. With HOST:PORT the number of replicas is not known.

    Examples:

      headwaiter status deploy/serve.yaml

      headwaiter status localhost:9000 --json
    """
    from headwaiter.client import HeadwaiterError
    from headwaiter.serving.errors import LaunchError

    console = CommandConsole()
    try:
        with console.spinner("status"):
            statuses = _ask(target, cluster=cluster, key=key)
    except LaunchError as error:
        console.fail(str(error), error.code)
    except HeadwaiterError as error:
        console.fail(error.message, 1)
    if as_json:
        console.print_line(json.dumps({"models": [asdict(status) for status in statuses]}, ensure_ascii=False))
    else:
        console.print(_table(statuses))
        for status in statuses:
            if status.reason:
                console.print_line(f"{status.name}: {status.reason}")
    raise typer.Exit(int(any(status.phase != "ready" for status in statuses)))


def _ask(target: str, *, cluster: bool, key: str | None) -> list[ModelStatus]:
    file = Path(target)
    if cluster:
        return _ask_ray(None)
    if _ADDRESS.fullmatch(target) and not file.exists():
        return _ask_service(target, key)
    return _ask_ray(_local_address(file))


def _local_address(file: Path) -> str:
    """The address of the Ray of the service that serves `file`."""
    from headwaiter.serving.errors import PreconditionError
    from headwaiter.serving.instance import InstanceRegistry

    if not file.exists():
        raise PreconditionError(f"{file} does not exist; give the configuration file of a service, or HOST:PORT.")
    instance = InstanceRegistry(file).find()
    if instance is None:
        raise PreconditionError(f"{file} is not being served; `headwaiter serve {file}` starts it.")
    return instance.address


def _ask_ray(address: str | None) -> list[ModelStatus]:
    from headwaiter.serving.local_ray import connect_to_ray
    from headwaiter.serving.ray_compat import ServeController
    from headwaiter.serving.status import model_statuses

    with connect_to_ray(address):
        return model_statuses(ServeController().applications())


def _ask_service(address: str, key: str | None) -> list[ModelStatus]:
    from headwaiter.client import Client
    from headwaiter.serving.status import ModelStatus

    with Client(address, key=key) as client:
        return [
            ModelStatus(model.name, "ready", model.version, client.describe(model.name).precision)
            if model.ready
            else ModelStatus(model.name, "starting", model.version, "")
            for model in client.models()
        ]


def _table(statuses: Sequence[ModelStatus]) -> Table:
    table = Table("model", "status", "version", "precision", "replicas", box=SIMPLE_HEAD, header_style="bold")
    for status in statuses:
        replicas = "" if status.desired_replicas is None else f"{status.running_replicas} of {status.desired_replicas}"
        phase = Text(status.phase, _STYLES[status.phase])
        table.add_row(status.name, phase, status.version, status.precision, replicas)
    return table
