"""The RPC methods, read from the protobuf descriptors. Ray dispatches by method name without the service, so names are
unique across services."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headwaiter.protocol.tasks import BUILT_IN_TASKS, task_specs
from headwaiter.v1 import models_pb2

MODELS_SERVICE = models_pb2.DESCRIPTOR.services_by_name["Models"].full_name


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    service: str
    request: type[Message]
    response: type[Message]
    client_streaming: bool
    server_streaming: bool

    @property
    def path(self) -> str:
        """The path of the HTTP/2 request."""
        return f"/{self.service}/{self.name}"

    @property
    def command(self) -> str:
        """The name in kebab case, for HTTP paths and the command line: generate-images."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.name).lower()

    @property
    def needs_admission(self) -> bool:
        """Whether admission control applies. Episodes are exempt: each holds a slot of its own."""
        return self.service != MODELS_SERVICE and not self.client_streaming


def methods_of(stubs: ModuleType) -> Iterator[Method]:
    descriptor: Any = stubs.DESCRIPTOR  # type: ignore[attr-defined,unused-ignore]
    for service in descriptor.services_by_name.values():
        for method in service.methods:
            yield Method(
                method.name,
                service.full_name,
                GetMessageClass(method.input_type),
                GetMessageClass(method.output_type),
                method.client_streaming,
                method.server_streaming,
            )


def _collect(modules: Iterable[ModuleType]) -> dict[str, Method]:
    methods: dict[str, Method] = {}
    for module in modules:
        for method in methods_of(module):
            if methods.setdefault(method.name, method).service != method.service:
                other = methods[method.name].service
                raise TypeError(f"{method.service} and {other} both have a method {method.name}; rename one of them")
    return methods


@cache
def built_in_methods() -> dict[str, Method]:
    return _collect([*(spec.load_stubs() for spec in BUILT_IN_TASKS), models_pb2])


@cache
def all_methods() -> dict[str, Method]:
    """The methods of all registered tasks, and of the service Models. Raises TypeError if a name is not unique."""
    return _collect([*(spec.load_stubs() for spec in task_specs().values()), models_pb2])


def find_method(name: str) -> Method | None:
    """Return a method. Entry points are read only if it is not a built-in one."""
    return built_in_methods().get(name) or all_methods().get(name)
