"""CPUs that a deployment needs, compared with those that Ray has. Serve itself would wait for missing ones for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwaiter.serving.errors import PreconditionError
from headwaiter.serving.ray_config import RayConfig


@dataclass(frozen=True, slots=True)
class CpuDemand:
    """CPUs of one application."""

    name: str
    replicas: int
    cpus_per_replica: float
    surge: int = 0
    """Replicas that an update starts before it stops old ones."""

    @property
    def cpus(self) -> float:
        return (self.replicas + self.surge) * self.cpus_per_replica

    def __str__(self) -> str:
        update = f", {self.surge} more replica{'s'[: self.surge > 1]} for the update" if self.surge else ""
        return f"{self.name} {self.cpus:g} ({self.replicas} × {self.cpus_per_replica:g}{update})"


def cpu_demands(
    applications: Iterable[RayConfig], running: Mapping[str, Mapping[str, Any]], unchanged: set[str]
) -> list[CpuDemand]:
    """The demand of every application; `running` is the state of those that Serve has now.

    An unchanged autoscaled application keeps its current replicas. A changed one is replaced replica by replica.
    """
    demands = []
    for application in applications:
        name, (options,) = application["name"], application["deployments"]
        replicas, surge = _replicas(options), 0
        if name in unchanged:
            replicas = max(replicas, *(d["target_num_replicas"] for d in running[name]["deployments"].values()))
        elif name in running:
            surge = -(-options["max_surge_percent"] * replicas // 100)  # rounded up, as Serve does
        demands.append(CpuDemand(name, replicas, options["ray_actor_options"]["num_cpus"], surge))
    return [demand for demand in demands if demand.cpus]


def check_cpus(demands: Sequence[CpuDemand], available: float) -> None:
    """Raise PreconditionError if a Ray with `available` CPUs, which cannot grow, is too small."""
    if sum(demand.cpus for demand in demands) > available:
        raise PreconditionError(
            f"{format_demand(demands)} and the running Ray has {available:g}; lower resources.cpus or replicas, or "
            "stop and start `headwaiter serve`, which starts a Ray that is large enough."
        )


def format_demand(demands: Sequence[CpuDemand]) -> str:
    total = sum(demand.cpus for demand in demands)
    return f"The models need {total:g} CPUs ({', '.join(map(str, demands))})"


def _replicas(options: RayConfig) -> int:
    replicas = options["num_replicas"]
    return int(options["autoscaling_config"]["initial_replicas"] if replicas == "auto" else replicas)
