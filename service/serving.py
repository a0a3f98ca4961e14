"""`headwaiter serve` and `headwaiter key`. Ray is loaded when serving begins, not before."""

from __future__ import annotations

import signal
import sys
import time
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
    from service.config import Service
    from service.instance import Instance, Register
    from service.launch import Cluster

Render = Callable[["Service"], dict[str, Any]]


def add_commands(app: typer.Typer) -> None:
    app.command("serve")(serve_command)
    app.command("fetch")(fetch_command)
    app.command("key")(key_command)


def serve_command(
    file: Annotated[Path, typer.Argument(help="What to serve.")] = Path("serve.yaml"),
    cluster: Annotated[
        bool, typer.Option("--cluster", help="On the Ray that runs already; returns when ready.")
    ] = False,
    rendered: Annotated[bool, typer.Option("--render", help="Print Ray's own config and deploy nothing.")] = False,
    models_at: Annotated[
        Path | None, typer.Option(help="With --render: the folder of model packages on the cluster's nodes.")
    ] = None,
    keys_at: Annotated[
        Path | None, typer.Option(help="With --render: the file of keys on the cluster's nodes.")
    ] = None,
) -> None:
    """Serve models over gRPC and HTTP, on a Ray of their own.

    Runs until Ctrl-C, then finishes what was asked. Run it again with the same file (or send SIGHUP) after a change:
    changed models are replaced while they answer, the others are not touched.

    Examples:

      headwaiter serve deploy/serve.yaml

      headwaiter serve serve.yaml --cluster

      headwaiter serve serve.yaml --render --models-at /models > serveConfigV2.yaml
    """
    from service.rendering import Nodes, render

    if (models_at or keys_at) and not rendered:
        Voice().fail("--models-at and --keys-at are for --render; serve.yaml says where things are on this machine.", 2)
    serve(
        file,
        partial(render, nodes=Nodes(models_at, keys_at)),
        mode="render" if rendered else "cluster" if cluster else "local",
    )


def fetch_command(
    store: Annotated[str, typer.Argument(help="A folder, or an address that files can be fetched from.")],
    packages: Annotated[list[str], typer.Argument(help="NAME/VERSION/PRECISION, one or more.")],
    to: Annotated[Path, typer.Option(help="Where packages are kept.")] = Path("models"),
) -> None:
    """Fetch model packages, and hold every file against its hash. What is there already and whole is left.

    Examples:

      headwaiter fetch https://store.example/models opus-mt-zh-en/1/int8 --to /models
    """
    from service.fetching import FetchError, fetch

    voice = Voice()
    try:
        fetched = fetch(store, packages, to)
    except FetchError as error:
        voice.fail(str(error), 2)
    for name in packages:
        voice.say(f"{name} ({'fetched' if name in fetched else 'was there'})")


def key_command(
    name: Annotated[str | None, typer.Option(help="Whose it is; else a name is made up.")] = None,
    append: Annotated[Path | None, typer.Option(help="Add its line to this file.")] = None,
) -> None:
    """Make an API key. It is shown once; the file that `auth: {keys: …}` names holds only its hash.

    Examples:

      headwaiter key --name alice

      headwaiter key --name alice --append keys.txt
    """
    from service import keys

    voice = Voice()
    try:
        key = keys.make_key()
        line = keys.line_for(name, key)
        if append is not None:
            keys.append(append, line)
    except keys.KeysError as error:
        voice.fail(str(error), 2)
    voice.say(f"key   {key}   (shown this once; callers send `authorization: Bearer KEY`)")
    voice.say(f"line  {line}" if append is None else f"line  {line}   (added to {append})")


class Voice:
    """Lines for people: marks and spinners in a terminal, plain text elsewhere."""

    def __init__(self) -> None:
        # Ray prints to whatever sys.stdout is at the moment; these keep the one of the beginning.
        self._out = Console(file=sys.stdout, highlight=False)
        self._errors = Console(file=sys.stderr, highlight=False)

    def say(self, text: str = "") -> None:
        self._out.print(Text(text), soft_wrap=True)

    def done(self, text: str, seconds: float) -> None:
        self._out.print(Text.assemble(("✓ ", "green"), text, (f" {seconds:.1f} s", "dim")), soft_wrap=True)

    def warn(self, sentence: str) -> None:
        self._errors.print(Text.assemble(("! ", "yellow"), sentence), soft_wrap=True)

    def wrong(self, sentence: str) -> None:
        self._errors.print(Text.assemble(("✗ ", "red"), sentence), soft_wrap=True)

    def fail(self, sentence: str, code: int) -> NoReturn:
        self.wrong(sentence)
        sys.exit(code)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        with self._out.status(f"{text} …"):
            yield

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        started = time.monotonic()
        with self.busy(text):
            yield
        self.done(text, time.monotonic() - started)


class Stop(BaseException):
    """Ctrl-C or SIGTERM, wherever it comes."""


class Signals:
    """SIGINT and SIGTERM stop at once what goes on; SIGHUP waits to be asked for."""

    def __init__(self) -> None:
        self._hung_up = False

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._arrived)

    def _arrived(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGHUP:
            raise Stop
        self._hung_up = True

    def wait_for_hangup(self) -> None:
        while not self._hung_up:
            time.sleep(0.2)
        self._hung_up = False


def serve(file: Path, render: Render, *, mode: str) -> None:
    """The command, for whichever way of rendering."""
    voice = Voice()
    try:
        from service.config import ConfigError, load
        from service.launch import LaunchError
    except ModuleNotFoundError as error:
        voice.fail(f"Serving needs {error.name}, which is not installed: pip install 'headwaiter[serve,cpu]'.", 2)
    try:
        service = load(file)
        if mode == "render":
            _print_rendered(render(service))
        elif mode == "cluster":
            _serve_on_cluster(service, render, voice)
        else:
            _serve_here(service, render, voice)
    except ConfigError as error:
        voice.fail(str(error), 2)
    except LaunchError as error:
        voice.fail(str(error), error.code)
    except Stop:
        voice.fail("Stopped before it was ready.", 130)


def _print_rendered(rendered: dict[str, Any]) -> None:
    import yaml

    from service.rendering import ENVIRONMENT

    sys.stdout.write("# For serveConfigV2. Every Ray node needs in its environment:\n")
    for name, value in ENVIRONMENT.items():
        sys.stdout.write(f"#   {name}={value}\n")
    yaml.safe_dump(rendered, sys.stdout, sort_keys=False, allow_unicode=True)


def _serve_on_cluster(service: Service, render: Render, voice: Voice) -> None:
    from service import launch

    with launch.running_ray():
        launch.demand_reachable(service)
        if launch.slow_nodes():
            voice.warn(
                "This cluster's nodes were started without RAY_SERVE_ENABLE_HA_PROXY=1 and "
                "RAY_SERVE_THROUGHPUT_OPTIMIZED=1 in their environment: every request takes a slower way."
            )
        remark(service, voice)
        rendered = render(service)
        _deploy(service, launch.Cluster(rendered), rendered, voice)
        _tell(service, voice)


def _serve_here(service: Service, render: Render, voice: Voice) -> None:
    from service import launch
    from service.instance import Register

    register = Register(service.file)
    instance = register.running()
    if instance is None:
        _serve_until_stopped(service, render, voice, register)
        return
    instance.demand_same_address(service)
    voice.say(f"{service.file} is being served by process {instance.process}, which goes on with what changed.")
    remark(service, voice)
    with launch.running_ray(instance.address):
        rendered = render(service)
        _deploy(service, launch.Cluster(rendered), rendered, voice)


def _serve_until_stopped(service: Service, render: Render, voice: Voice, register: Register) -> None:
    from service import launch
    from service.instance import Instance

    signals = Signals()
    signals.install()
    with ExitStack() as stack:
        remark(service, voice)
        if launch.cpus_asked(service) > launch.cores():
            asked, there = launch.cpus_asked(service), launch.cores()
            voice.warn(f"The models ask for {asked:g} CPUs and share the {there} of this machine.")
        rendered = render(service)
        with voice.step("Ray"):
            stack.enter_context(launch.local_ray(service))
            signals.install()  # Ray has put its own in their place
        with voice.step("Serve"):
            cluster = launch.Cluster(rendered)
            stack.callback(cluster.close)
        _deploy(service, cluster, rendered, voice)
        instance = Instance.of(service, cluster)
        register.enter(instance)
        _tell(service, voice, cluster)
        with suppress(Stop):
            while True:
                signals.wait_for_hangup()
                _update(service, instance, cluster, render, voice)
        register.leave()
        with suppress(Stop), voice.step("finished what was asked"):
            voice.say("stopping; Ctrl-C again leaves at once")
            cluster.drain()


def _update(service: Service, instance: Instance, cluster: Cluster, render: Render, voice: Voice) -> None:
    """Reads the file again. Whatever is wrong with it, serving goes on."""
    from service.config import ConfigError, load
    from service.launch import LaunchError

    try:
        changed = load(service.file)
        instance.demand_same_address(changed)
        remark(changed, voice)
        rendered = render(changed)
        _deploy(changed, cluster, rendered, voice)
        voice.say(f"{service.file} is served as it is now")
    except (ConfigError, LaunchError) as error:
        voice.wrong(f"{error} Serving goes on as before.")


def _deploy(service: Service, cluster: Cluster, rendered: dict[str, Any], voice: Voice) -> None:
    """A line for each application when it is ready; the first failure ends it. At the end all of them answer."""
    from service.launch import LaunchError, await_answers, cause

    started = time.monotonic()
    kept = cluster.deploy(rendered)
    names = [each["name"] for each in rendered["applications"]]
    with voice.busy(f"starting {', '.join(name for name in names if name not in kept)}"):
        for name, state in cluster.changes(names):
            if state.phase == "failed":
                raise LaunchError(f"{name} did not start: {cause(state.message)}; the logs are in {cluster.logs}.")
            if state.phase == "ready":
                voice.done(f"{name} (unchanged)" if name in kept else name, time.monotonic() - started)
            elif state.message:
                voice.warn(f"{name}: {cause(state.message)}.")
        await_answers(service, names)


def remark(service: Service, voice: Voice) -> None:
    """What someone might not expect."""
    config = service.config
    for name in service.left_out:
        voice.warn(f"{name} is left out: its package is not there, and serve.yaml calls it optional.")
    for name, model in config.models.items():
        found = service.packages[name].manifest.precision
        if model.precision not in (None, found):
            voice.warn(f"{name} has no {model.precision}; {found} is served instead.")
    if service.keys is None and not service.is_local:
        voice.warn(
            f"Whoever reaches port {config.grpc.port} or {config.http.port} may call: no keys are set; "
            "`headwaiter key --append keys.txt` makes one, `auth: {keys: keys.txt}` asks for it."
        )


def _tell(service: Service, voice: Voice, cluster: Cluster | None = None) -> None:
    from service.hints import KEY, commands

    config = service.config
    voice.say()
    voice.say(f"gRPC     localhost:{config.grpc.port}")
    voice.say(f"HTTP     http://localhost:{config.http.port}/models")
    if cluster:
        voice.say(f"metrics  http://localhost:{config.metrics.port}/metrics")
        voice.say(f"logs     {cluster.logs}")
    voice.say()
    if service.keys:
        voice.say(f"  export {KEY}=…")
    for command in commands(service):
        voice.say(f"  {command}")
    voice.say()
