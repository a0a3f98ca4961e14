"""Training recipes: dataset, schedule, sizes and the metric to reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headwaiter_export.zoo.data.base import Dataset


@dataclass(frozen=True, slots=True)
class Recipe:
    data: type[Dataset]
    target: (
        float | None
    )  # for the dataset's metric, on held-out data through the exported package; None for a custom dataset
    steps: int
    batch_size: int = 64
    learning_rate: float = 1e-3
    tier: int = 1  # 1: trained to convergence, 2: short run
    options: dict[str, Any] = field(default_factory=dict)  # arguments of the dataset
    sizes: dict[str, Any] = field(default_factory=dict)  # overrides of the default sizes

    def to_dict(self) -> dict[str, Any]:
        """Everything that determines a training run, apart from its seed and the code."""
        settings = {name: getattr(self, name) for name in ("steps", "batch_size", "learning_rate", "options", "sizes")}
        return {"data": self.data.name, **settings}
