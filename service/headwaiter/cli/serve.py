"""The command `headwaiter serve`; `add_commands` also adds `status`, `fetch` and `key`. Ray is imported on demand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwaiter.cli.fetch import fetch_command
from headwaiter.cli.key import key_command
from headwaiter.cli.signals import StopRequested
from headwaiter.cli.status import status_command
from headwaiter.console import CommandConsole

if TYPE_CHECKING:
    from headwaiter.serving.config import Ports, Service

Render = Callable[["Service"], dict[str, Any]]


def add_commands(app: typer.Typer) -> None:
    app.command("serve")(serve_command)
    app.command("status")(status_command)
    app.command("fetch")(fetch_command)
    app.command("key")(key_command)


def serve_command(
    file: Annotated[Path, typer.Argument(help="Configuration file.")] = Path("serve.yaml"),
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Deploy to the running Ray cluster and exit once the models are ready.")
    ] = False,
    rendered: Annotated[
        bool, typer.Option("--render", help="Print the Ray Serve configuration instead of deploying it.")
    ] = False,
    models_at: Annotated[
        Path | None,
        typer.Option(help="With --render: directory of model packages on the nodes (default: the paths in the file)."),
    ] = None,
    keys_at: Annotated[
        Path | None, typer.Option(help="With --render: API-key file on the nodes (default: the path in the file).")
    ] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port (default: grpc.port in the file).")] = None,
    http_port: Annotated[int | None, typer.Option(help="HTTP port (default: http.port in the file).")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Metrics port (default: metrics.port in the file).")] = None,
    check_ports: Annotated[bool, typer.Option("--check-ports", help="Check that the ports are free and exit.")] = False,
    single_process: Annotated[
        bool, typer.Option("--single-process", help="Serve in this process without Ray: one replica of each model.")
    ] = False,
) -> None:
    """Serve models over gRPC and HTTP on a local Ray instance, or in this process with --single-process.

    Ctrl-C or SIGTERM completes the running requests and stops. After editing the file, run the command again or send
    SIGHUP to the process: changed models are replaced without downtime, the others keep running.

    Examples:

      headwaiter serve deploy/serve.yaml

      headwaiter serve serve.yaml --grpc-port 9100

      headwaiter serve serve.yaml --single-process

      headwaiter serve serve.yaml --cluster

      headwaiter serve serve.yaml --render --models-at /models > serveConfigV2.yaml
    """
    ports = {"grpc": grpc_port, "http": http_port, "metrics": metrics_port}
    if single_process:
        from headwaiter.cli.serve_single_process import serve_single_process

        refused = {"--cluster": cluster, "--render": rendered, "--models-at": models_at, "--keys-at": keys_at}
        serve_single_process(
            file,
            {section: port for section, port in ports.items() if port is not None},
            check_ports_only=check_ports,
            refused=[option for option, value in refused.items() if value],
        )
        return
    from headwaiter.serving.ray_config import NodePaths, render

    mode = "check-ports" if check_ports else "render" if rendered else "cluster" if cluster else "local"

    if (models_at or keys_at) and not rendered:
        CommandConsole().fail(
            "--models-at and --keys-at need --render; without it the paths are those of the configuration file.", 2
        )
    serve(
        file,
        partial(render, nodes=NodePaths(models_at, keys_at)),
        mode=mode,
        ports={section: port for section, port in ports.items() if port is not None},
    )


def serve(file: Path, render: Render, *, mode: str, ports: Ports | None = None) -> None:
    """Serve the models of `file`. `mode` is local, cluster, render or check-ports; `ports` override the file's."""
    console = CommandConsole()
    try:
        from headwaiter.serving.config import ConfigError, load_config
        from headwaiter.serving.errors import LaunchError
    except ModuleNotFoundError as error:
        console.fail(f"Serving needs {error.name}, which is not installed; run pip install 'headwaiter[serve,cpu]'.", 2)
    try:
        if mode == "check-ports":
            check_ports(file, ports or {})
            return
        service = load_config(file, ports or {})
        if mode == "render":
            _print_rendered(render(service))
        elif mode == "cluster":
            _serve_on_cluster(service, render, console)
        else:
            from headwaiter.cli.local_service import serve_locally

            serve_locally(service, render, console)
    except ConfigError as error:
        console.fail(str(error), 2)
    except LaunchError as error:
        console.fail(str(error), error.code)
    except StopRequested:
        console.fail("Stopped before it was ready.", 130)


def check_ports(file: Path, ports: Ports) -> None:
    """Check that the ports are free, unless a running instance of the same file uses them."""
    from headwaiter.serving.config import read_config
    from headwaiter.serving.instance import InstanceRegistry
    from headwaiter.serving.preflight import check_free_ports

    config = read_config(file, ports)
    if InstanceRegistry(file).claim() is None:
        check_free_ports(config, file)


def _print_rendered(rendered: dict[str, Any]) -> None:
    import yaml

    from headwaiter.serving.ray_compat import NODE_ENVIRONMENT

    sys.stdout.write("# For serveConfigV2. Every Ray node needs in its environment:\n")
    for name, value in NODE_ENVIRONMENT.items():
        sys.stdout.write(f"#   {name}={value}\n")
    yaml.safe_dump(rendered, sys.stdout, sort_keys=False, allow_unicode=True)


def _serve_on_cluster(service: Service, render: Render, console: CommandConsole) -> None:
    from headwaiter.cli.deployment import deploy, print_endpoints, print_warnings
    from headwaiter.serving import preflight
    from headwaiter.serving.cluster import Cluster
    from headwaiter.serving.cpu_demand import cpu_demands, format_demand
    from headwaiter.serving.local_ray import connect_to_ray

    with connect_to_ray():
        preflight.check_nodes_reachable(service)
        if preflight.lacks_haproxy():
            console.warn(
                f"This cluster's nodes were started without {' and '.join(preflight.required_variables())} in their "
                "environment; requests take a slower path."
            )
        print_warnings(service, console)
        rendered = render(service)
        cluster = Cluster(rendered, can_grow=True)
        demands = cpu_demands(rendered["applications"], {}, set())
        if sum(demand.cpus for demand in demands) > cluster.cpus:
            console.warn(f"{format_demand(demands)} and the cluster has {cluster.cpus:g}; waiting for more nodes.")
        deploy(service, cluster, rendered, console)
        print_endpoints(service, console)
