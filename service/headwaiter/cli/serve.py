"""The commands `headwaiter serve`, `fetch` and `key`. Ray is imported only when it is needed."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from headwaiter.serving.config import Ports, Service
    from headwaiter.serving.instance import Instance, InstanceRegistry
    from headwaiter.serving.launch import Cluster

Render = Callable[["Service"], dict[str, Any]]


def add_commands(app: typer.Typer) -> None:
    app.command("serve")(serve_command)
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
        ServeConsole().fail(
            "--models-at and --keys-at need --render; without it the paths are those of the configuration file.", 2
        )
    serve(
        file,
        partial(render, nodes=NodePaths(models_at, keys_at)),
        mode=mode,
        ports={section: port for section, port in ports.items() if port is not None},
    )


def fetch_command(
    store: Annotated[str, typer.Argument(help="Directory or base URL of the package store.")],
    packages: Annotated[list[str], typer.Argument(help="One or more packages as NAME/VERSION/PRECISION.")],
    to: Annotated[Path, typer.Option(help="Target directory.")] = Path("models"),
) -> None:
    """Fetch model packages and verify their checksums. Complete packages are not fetched again.

    Examples:

      headwaiter fetch https://store.example/models opus-mt-zh-en/1/int8 --to /models
    """
    from headwaiter.package.fetching import FetchError, fetch

    console = ServeConsole()
    try:
        fetched = fetch(store, packages, to)
    except FetchError as error:
        console.fail(str(error), 2)
    for name in packages:
        console.print_line(f"{name} ({'fetched' if name in fetched else 'already present'})")


def key_command(
    name: Annotated[str | None, typer.Option(help="Name of the key (default: key-<hash prefix>).")] = None,
    append: Annotated[
        Path | None, typer.Option(help="API-key file to append the line to (default: print it only).")
    ] = None,
) -> None:
    """Create an API key. It is printed once; the file set by `auth: {keys: …}` contains only its hash.

    Examples:

      headwaiter key --name alice

      headwaiter key --name alice --append keys.txt
    """
    from headwaiter.api import keys

    console = ServeConsole()
    try:
        key = keys.make_key()
        line = keys.format_key_line(name, key)
        if append is not None:
            keys.append(append, line)
    except keys.KeysError as error:
        console.fail(str(error), 2)
    console.print_line(f"key   {key}   (printed only once; clients send `authorization: Bearer KEY`)")
    console.print_line(f"line  {line}" if append is None else f"line  {line}   (appended to {append})")


class ServeConsole:
    """Prints progress and errors: symbols and spinners in a terminal, plain text otherwise."""

    def __init__(self) -> None:
        # Ray replaces sys.stdout while it starts; keep the original streams.
        self._out = Console(file=sys.stdout, highlight=False)
        self._errors = Console(file=sys.stderr, highlight=False)

    def print_line(self, text: str = "") -> None:
        self._out.print(Text(text), soft_wrap=True)

    def print_done(self, text: str, seconds: float) -> None:
        self._out.print(Text.assemble(("✓ ", "green"), text, (f" {seconds:.1f} s", "dim")), soft_wrap=True)

    def warn(self, message: str) -> None:
        self._errors.print(Text.assemble(("! ", "yellow"), message), soft_wrap=True)

    def print_error(self, message: str) -> None:
        self._errors.print(Text.assemble(("✗ ", "red"), message), soft_wrap=True)

    def fail(self, message: str, code: int) -> NoReturn:
        self.print_error(message)
        sys.exit(code)

    @contextmanager
    def spinner(self, text: str) -> Iterator[None]:
        with self._out.status(f"{text} …"):
            yield

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        started = time.monotonic()
        with self.spinner(text):
            yield
        self.print_done(text, time.monotonic() - started)


class StopRequested(BaseException):
    """Raised in the main thread by SIGINT and SIGTERM."""


class Signals:
    """Signal handlers: SIGINT and SIGTERM raise StopRequested, SIGHUP is reported by `wait_for_hangup`."""

    def __init__(self) -> None:
        self._hangup_received = False

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGHUP:
            raise StopRequested
        self._hangup_received = True

    def wait_for_hangup(self) -> None:
        while not self._hangup_received:
            time.sleep(0.2)
        self._hangup_received = False


def serve(file: Path, render: Render, *, mode: str, ports: Ports | None = None) -> None:
    """Serve the models of `file`. `mode` is local, cluster, render or check-ports; `ports` override the file's."""
    console = ServeConsole()
    try:
        from headwaiter.serving.config import ConfigError, load_config
        from headwaiter.serving.launch import LaunchError
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
            _serve_locally(service, render, console)
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
    from headwaiter.serving.launch import check_free_ports

    config = read_config(file, ports)
    if InstanceRegistry(file).claim() is None:
        check_free_ports(config, file)


def _print_rendered(rendered: dict[str, Any]) -> None:
    import yaml

    from headwaiter.serving.ray_config import NODE_ENVIRONMENT

    sys.stdout.write("# For serveConfigV2. Every Ray node needs in its environment:\n")
    for name, value in NODE_ENVIRONMENT.items():
        sys.stdout.write(f"#   {name}={value}\n")
    yaml.safe_dump(rendered, sys.stdout, sort_keys=False, allow_unicode=True)


def _serve_on_cluster(service: Service, render: Render, console: ServeConsole) -> None:
    from headwaiter.cli.example_commands import print_endpoints
    from headwaiter.serving import launch

    with launch.connect_to_ray():
        launch.check_nodes_reachable(service)
        if launch.lacks_haproxy():
            console.warn(
                "This cluster's nodes were started without RAY_SERVE_ENABLE_HA_PROXY=1 and "
                "RAY_SERVE_THROUGHPUT_OPTIMIZED=1 in their environment; requests take a slower path."
            )
        print_warnings(service, console)
        rendered = render(service)
        _deploy(service, launch.Cluster(rendered), rendered, console)
        print_endpoints(service, console.print_line)


def _serve_locally(service: Service, render: Render, console: ServeConsole) -> None:
    from headwaiter.serving import launch
    from headwaiter.serving.instance import InstanceRegistry

    registry = InstanceRegistry(service.file)
    instance = registry.claim()
    if instance is None:
        _serve_until_stopped(service, render, console, registry)
        return
    instance.check_same_address(service)
    if not instance.address:
        raise launch.PreconditionError(
            f"{service.file} is served by process {instance.pid} with --single-process; stop it, or use that option."
        )
    console.print_line(f"{service.file} is served by process {instance.pid}; updating it.")
    print_warnings(service, console)
    with launch.connect_to_ray(instance.address):
        rendered = render(service)
        _deploy(service, launch.Cluster(rendered), rendered, console)


def _serve_until_stopped(service: Service, render: Render, console: ServeConsole, registry: InstanceRegistry) -> None:
    from headwaiter.cli.example_commands import print_endpoints
    from headwaiter.serving import launch
    from headwaiter.serving.instance import Instance

    signals = Signals()
    signals.install()
    with ExitStack() as stack:
        print_warnings(service, console)
        if launch.requested_cpus(service) > launch.cores():
            requested, available = launch.requested_cpus(service), launch.cores()
            console.warn(f"The models request {requested:g} CPUs and share the {available} of this machine.")
        rendered = render(service)
        with console.step("Ray"):
            stack.enter_context(launch.start_local_ray(service))
            signals.install()  # ray.init replaces the handlers
        with console.step("Serve"):
            cluster = launch.Cluster(rendered)
            stack.callback(cluster.close)
        _deploy(service, cluster, rendered, console)
        instance = Instance.for_service(service, cluster)
        registry.publish(instance)
        print_endpoints(service, console.print_line, cluster.logs)
        with suppress(StopRequested):
            while True:
                signals.wait_for_hangup()
                reload_config(service, instance, cluster, render, console)
        registry.clear()
        with suppress(StopRequested), console.step("requests completed"):
            console.print_line("stopping; press Ctrl-C again to stop immediately")
            cluster.drain()


def reload_config(
    service: Service, instance: Instance, cluster: Cluster, render: Render, console: ServeConsole
) -> None:
    """Read the file again and deploy the changes. Any error is printed and the service keeps running."""
    from headwaiter.serving.config import ConfigError, load_config
    from headwaiter.serving.launch import LaunchError, root_cause

    try:
        changed = load_config(service.file, service.port_overrides)
        instance.check_same_address(changed)
        print_warnings(changed, console)
        rendered = render(changed)
        _deploy(changed, cluster, rendered, console)
        console.print_line(f"{service.file} is reloaded")
        return
    except (ConfigError, LaunchError) as error:
        message = str(error)
    except (Exception, SystemExit) as error:  # rich raises SystemExit if the output pipe is closed
        message = f"{service.file} could not be reloaded: {root_cause(_format_exception(error))}."
    with suppress(OSError, SystemExit):  # the terminal may be closed
        console.print_error(f"{message} Serving continues as before.")


def _format_exception(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def _deploy(service: Service, cluster: Cluster, rendered: dict[str, Any], console: ServeConsole) -> None:
    """Deploy, print each application as it becomes ready, and return once all of them respond.

    Raises LaunchError for the first application that fails.
    """
    from headwaiter.serving.launch import LaunchError, root_cause, wait_until_answering

    started = time.monotonic()
    unchanged = cluster.deploy(rendered)
    names = [application["name"] for application in rendered["applications"]]
    with console.spinner(f"starting {', '.join(name for name in names if name not in unchanged)}"):
        for name, state in cluster.watch_states(names):
            if state.phase == "failed":
                raise LaunchError(f"{name} did not start: {root_cause(state.message)}; see the logs in {cluster.logs}.")
            if state.phase == "ready":
                console.print_done(f"{name} (unchanged)" if name in unchanged else name, time.monotonic() - started)
            elif state.message:
                console.warn(f"{name}: {root_cause(state.message)}.")
        wait_until_answering(service, names)


def print_warnings(service: Service, console: ServeConsole) -> None:
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
