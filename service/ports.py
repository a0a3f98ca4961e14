"""Ports of one service on a machine, where no other service of ours will be."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_BLOCKS = range(20_000, 32_000, 500)  # below those that the system gives to outgoing connections
_HTTP, _GRPC = (1, 240), (250, 490)  # parts of a block
_INTERNAL = {
    "RAY_SERVE_HAPROXY_METRICS_PORT": 491,
    "RAY_SERVE_HAPROXY_STATS_PORT": 492,
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": 493,
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": 494,
}


class NoPortsError(Exception):
    """Every block is taken."""


@contextmanager
def own_ports() -> Iterator[dict[str, str]]:
    """Environment that keeps what Serve listens on to itself, for as long as the block lasts.

    Replicas of two Rays on one machine would otherwise take the same gRPC ports without noticing: Ray 2.60 means to
    switch SO_REUSEPORT off and does not, and the kernel then gives each call to either. The first port of a block is
    held open as the sign that the block is taken.
    """
    with _taken_block() as first:
        blocks = {"HTTP": _HTTP, "GRPC": _GRPC}
        ranges = {
            f"RAY_SERVE_DIRECT_INGRESS_{end}_{protocol}_PORT": str(first + part)
            for protocol, parts in blocks.items()
            for end, part in zip(("MIN", "MAX"), parts, strict=True)
        }
        yield ranges | {name: str(first + part) for name, part in _INTERNAL.items()}


@contextmanager
def _taken_block() -> Iterator[int]:
    for first in _BLOCKS:
        with suppress(OSError), ExitStack() as stack:
            sign = stack.enter_context(socket.create_server(("127.0.0.1", first)))
            for part in _INTERNAL.values():
                socket.create_server(("", first + part)).close()
            stack.pop_all()
            break
    else:
        raise NoPortsError(f"{len(_BLOCKS)} services run on this machine already; stop one of them.")
    with sign:
        yield first
