"""Serves on a private Ray of this machine until it is stopped; a second command or SIGHUP updates the service."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from headwaiter.cli.deployment import deploy, print_endpoints, print_warnings
from headwaiter.cli.signals import Signals, StopRequested
from headwaiter.console import CommandConsole
from headwaiter.serving import preflight
from headwaiter.serving.cluster import Cluster, describe_error
from headwaiter.serving.config import ConfigError, Service, load_config
from headwaiter.serving.errors import LaunchError, PreconditionError
from headwaiter.serving.instance import Instance, InstanceRegistry
from headwaiter.serving.local_ray import connect_to_ray, start_local_ray

Render = Callable[[Service], dict[str, Any]]


def serve_locally(service: Service, render: Render, console: CommandConsole) -> None:
    registry = InstanceRegistry(service.file)
    instance = registry.claim()
    if instance is None:
        _serve_until_stopped(service, render, console, registry)
        return
    instance.check_same_address(service)
    if not instance.address:
        raise PreconditionError(
            f"{service.file} is served by process {instance.pid} with --single-process; stop it, or use that option."
        )
    console.print_line(f"{service.file} is served by process {instance.pid}; updating it.")
    print_warnings(service, console)
    with connect_to_ray(instance.address):
        rendered = render(service)
        deploy(service, Cluster(rendered), rendered, console)


def _serve_until_stopped(service: Service, render: Render, console: CommandConsole, registry: InstanceRegistry) -> None:
    signals = Signals()
    signals.install()
    with ExitStack() as stack:
        print_warnings(service, console)
        if preflight.requested_cpus(service) > preflight.cores():
            requested, available = preflight.requested_cpus(service), preflight.cores()
            console.warn(f"The models request {requested:g} CPUs and share the {available} of this machine.")
        rendered = render(service)
        with console.step("Ray"):
            stack.enter_context(start_local_ray(service))
            signals.install()  # ray.init replaces the handlers
        with console.step("Serve"):
            cluster = Cluster(rendered)
            stack.callback(cluster.close)
        instance = Instance.for_service(service, cluster)
        registry.publish(replace(instance, is_ready=False))
        deploy(service, cluster, rendered, console)
        registry.publish(instance)
        print_endpoints(service, console, cluster.logs)
        with suppress(StopRequested):
            while True:
                signals.wait_for_hangup()
                reload_config(service, instance, cluster, render, console)
        registry.clear()
        with suppress(StopRequested), console.step("requests completed"):
            console.print_line("stopping; press Ctrl-C again to stop immediately")
            cluster.drain()


def reload_config(
    service: Service, instance: Instance, cluster: Cluster, render: Render, console: CommandConsole
) -> None:
    """Read the file again and deploy the changes. Any error is printed and the service keeps running."""
    try:
        changed = load_config(service.file, service.port_overrides)
        instance.check_same_address(changed)
        print_warnings(changed, console)
        rendered = render(changed)
        deploy(changed, cluster, rendered, console)
        console.print_line(f"{service.file} is reloaded")
        return
    except (ConfigError, LaunchError) as error:
        message = str(error)
    except (Exception, SystemExit) as error:  # rich raises SystemExit if the output pipe is closed
        message = f"{service.file} could not be reloaded: {describe_error(error)}."
    with suppress(OSError, SystemExit):  # the terminal may be closed
        console.print_error(f"{message} Serving continues as before.")
