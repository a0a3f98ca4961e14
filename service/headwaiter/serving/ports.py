"""Port blocks for several local services on one machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from headwaiter.serving.ray_compat import PROXY_PORTS, replica_port_range

_BLOCK_STARTS = range(20_000, 32_000, 500)  # below Linux's ephemeral port range
_HTTP_OFFSETS, _GRPC_OFFSETS = (1, 240), (250, 490)  # ranges within a block
_PROXY_PORT_OFFSETS = {variable: 491 + index for index, variable in enumerate(PROXY_PORTS)}


class NoFreePortsError(Exception):
    """All port blocks are in use."""


@contextmanager
def reserve_ports() -> Iterator[dict[str, str]]:
    """Reserve a port block and yield the environment variables that make Serve use it. Raises NoFreePortsError.

    Without this, replicas of two Ray clusters on one machine silently share gRPC ports: Ray 2.60 fails to disable
    SO_REUSEPORT, and the kernel then distributes connections between them. The first port of the block is kept open as
    the reservation.
    """
    with _reserve_block() as first:
        yield {
            **replica_port_range("HTTP", *(first + offset for offset in _HTTP_OFFSETS)),
            **replica_port_range("GRPC", *(first + offset for offset in _GRPC_OFFSETS)),
            **{name: str(first + offset) for name, offset in _PROXY_PORT_OFFSETS.items()},
        }


@contextmanager
def _reserve_block() -> Iterator[int]:
    for first in _BLOCK_STARTS:
        with suppress(OSError), ExitStack() as stack:
            reservation = stack.enter_context(socket.create_server(("127.0.0.1", first)))
            for offset in _PROXY_PORT_OFFSETS.values():
                socket.create_server(("", first + offset)).close()
            stack.pop_all()
            break
    else:
        raise NoFreePortsError(
            f"All {len(_BLOCK_STARTS)} port blocks for local services are in use; stop another service first."
        )
    with reservation:
        yield first
