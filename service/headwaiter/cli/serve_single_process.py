"""`headwaiter serve --single-process`: everything in this process, without Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwaiter.console import CommandConsole

if TYPE_CHECKING:
    from headwaiter.serving.config import Ports, Service
    from headwaiter.serving.instance import Instance, InstanceRegistry
    from headwaiter.serving.single_process import SingleProcess

_LOGS = "standard error"


def serve_single_process(
    file: Path, ports: Ports, *, check_ports_only: bool = False, refused: Sequence[str] = ()
) -> None:
    """Serve the models of `file` until SIGTERM or SIGINT. `refused` are options that apply to Ray only."""
    console = CommandConsole()
    if refused:
        console.fail(f"{refused[0]} is for Ray; leave out either {refused[0]} or --single-process.", 2)
    try:
        from headwaiter.serving.config import ConfigError, load_config
        from headwaiter.serving.errors import LaunchError
        from headwaiter.serving.instance import InstanceRegistry
    except ModuleNotFoundError as error:
        console.fail(f"Serving needs {error.name}, which is not installed; run pip install 'headwaiter[serve,cpu]'.", 2)
    try:
        if check_ports_only:
            from headwaiter.cli.serve import check_ports

            check_ports(file, ports)
            return
        service = load_config(file, ports)
        registry = InstanceRegistry(file)
        instance = registry.claim()
        if instance is not None:
            _reload_other_process(service, instance, console)
            return
        asyncio.run(_serve(service, registry, console))
    except ConfigError as error:
        console.fail(str(error), 2)
    except LaunchError as error:
        console.fail(str(error), error.code)


def _reload_other_process(service: Service, instance: Instance, console: CommandConsole) -> None:
    from headwaiter.serving.errors import PreconditionError

    if instance.address:
        raise PreconditionError(
            f"{service.file} is served by process {instance.pid} on Ray; stop it, or leave out --single-process."
        )
    instance.check_same_address(service)
    os.kill(instance.pid, signal.SIGHUP)
    console.print_line(f"{service.file} is served by process {instance.pid}, which reloads it and prints the result.")


class _Signals:
    """Signals as events of the event loop: SIGHUP; the first SIGINT or SIGTERM; the second one."""

    def __init__(self) -> None:
        self.hangup, self.stop, self.stop_now = asyncio.Event(), asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.hangup.set)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._request_stop)

    def _request_stop(self) -> None:
        (self.stop_now if self.stop.is_set() else self.stop).set()


async def _serve(service: Service, registry: InstanceRegistry, console: CommandConsole) -> None:
    from headwaiter.api.logs import configure_logging
    from headwaiter.cli.deployment import print_endpoints
    from headwaiter.serving.instance import Instance
    from headwaiter.serving.single_process import SingleProcess

    signals = _Signals()
    configure_logging()
    _print_warnings(service, console)
    process, started = SingleProcess(service), time.monotonic()
    instance = Instance.for_single_process(service)
    try:
        starting = process.start(lambda name, _: console.print_done(name, time.monotonic() - started))
        if not await _finishes_before(starting, signals.stop):
            await process.stop()
            console.print_error("Stopped before it was ready.")
            os._exit(130)  # does not wait for the threads that load models
        registry.publish(instance)
        print_endpoints(service, console, _LOGS)
        while await _first(signals.hangup, process.must_end, signals.stop) is signals.hangup:
            signals.hangup.clear()
            await _finishes_before(_reload(process, service, instance, console), signals.stop)
        registry.clear()
        console.print_line("stopping; press Ctrl-C again to stop immediately")
        started = time.monotonic()
        if await _finishes_before(process.drain(), signals.stop_now):
            console.print_done("requests completed", time.monotonic() - started)
    finally:
        await process.stop()
    if process.must_end.is_set():
        console.fail(f"{process.end_reason}; restart this process.", 1)


async def _first(*events: asyncio.Event) -> asyncio.Event:
    """Wait until one of the events is set; the last ones have priority."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    return next(event for event in reversed(events) if event.is_set())


async def _finishes_before(work: Coroutine[Any, Any, None], event: asyncio.Event) -> bool:
    """Run `work`; if `event` is set first, cancel it and return False."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        await working
        return True
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    return False


async def _reload(process: SingleProcess, service: Service, instance: Instance, console: CommandConsole) -> None:
    """Read the file again and serve its models. Any error is printed and the service keeps running."""
    from headwaiter.serving.cluster import describe_error
    from headwaiter.serving.config import ConfigError, load_config
    from headwaiter.serving.errors import LaunchError

    started = time.monotonic()

    def print_ready(name: str, is_unchanged: bool) -> None:
        console.print_done(f"{name} (unchanged)" if is_unchanged else name, time.monotonic() - started)

    try:
        changed = await asyncio.to_thread(load_config, service.file, service.port_overrides)
        instance.check_same_address(changed)
        _print_warnings(changed, console)
        await process.reload(changed, print_ready)
        console.print_line(f"{service.file} is reloaded")
        return
    except (ConfigError, LaunchError) as error:
        message = str(error)
    except (Exception, SystemExit) as error:  # rich raises SystemExit if the output pipe is closed
        cause = describe_error(error)
        message = f"{service.file} could not be reloaded: {cause}."
    with suppress(OSError, SystemExit):  # the terminal may be closed
        console.print_error(f"{message} Serving continues as before.")


def _print_warnings(service: Service, console: CommandConsole) -> None:
    from headwaiter.cli.deployment import print_warnings
    from headwaiter.serving.preflight import cores

    print_warnings(service, console)
    models = service.config.models
    scaled = [name for name, model in models.items() if model.autoscale is not None or (model.replicas or 1) > 1]
    if scaled:
        console.warn(
            f"replicas and autoscale of {', '.join(scaled)} are ignored; --single-process runs each model once."
        )
    cpus = sum(model.resources.cpus for model in models.values())
    if cpus > cores():
        console.warn(f"The models request {cpus:g} CPUs and share the {cores()} of this machine.")
