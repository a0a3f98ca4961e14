"""HTTP routes of a model: one path per unary method, shared with its streaming variant."""

from __future__ import annotations

from dataclasses import dataclass

from headwaiter.api.methods import METHODS, Method

DESCRIBE, LIST = METHODS["Describe"], METHODS["ListModels"]


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    method: Method
    stream: Method | None

    def methods(self) -> tuple[Method, ...]:
        return (self.method,) if self.stream is None else (self.method, self.stream)


ROUTES = tuple(
    Route(f"/{method.command}", method, METHODS.get(f"{method.name}Stream"))
    for method in METHODS.values()
    if not method.server_streaming and method.service != DESCRIBE.service
)
