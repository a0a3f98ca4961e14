"""At the door: a call that the line has no place for is turned away before Ray begins with it.

What a refusal costs, the answers lack: with five times the calls that a model can answer there are four to each of them
(`python -m loadtest.overhead --part overload`). Only what is refused leaves here: everything else, and every call over
HTTP, goes on to be judged inside.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from service.ingress.grpc import Context
from service.ingress.methods import METHODS, Method


class Host(Protocol):
    def turns_away(self, method: Method, context: Context) -> bool:
        """Whether there is no place in line for a call of it; if so, the caller has been told."""


_hosts: list[Host] = []  # of this process: the one that a replica is, none in a proxy


def stand_for(host: Host) -> None:
    _hosts[:] = [host]


def guard(_servicer: Any, server: Any) -> None:
    """Named first among the functions that add services: Ray calls it with every gRPC server that it makes, in proxies
    too. The handlers that the server makes from then on ask at the door first."""
    make = server.service_handler_factory

    def make_guarded(service_method: str, streaming_type: Any) -> Any:
        handler = make(service_method=service_method, streaming_type=streaming_type)
        method, wrap = METHODS.get(service_method.rpartition("/")[2]), _WAYS.get(streaming_type.name)
        return wrap(handler, method) if wrap and method and method.waits else handler

    server.service_handler_factory = make_guarded


def _turned_away(method: Method, context: Context) -> bool:
    return any(host.turns_away(method, context) for host in _hosts)


def _unary(handler: Callable[[Any, Any], Any], method: Method) -> Any:
    async def answer(request: Any, context: Any) -> bytes:
        return b"" if _turned_away(method, context) else await handler(request, context)

    return answer


def _stream(handler: Callable[[Any, Any], Any], method: Method) -> Any:
    async def stream(request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        if not _turned_away(method, context):
            async for response in handler(request, context):
                yield response

    return stream


_WAYS = {"UNARY_UNARY": _unary, "UNARY_STREAM": _stream}
