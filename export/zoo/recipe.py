"""How a system learns: from which data, for how long, and what it must reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from export.zoo.data.base import Data


@dataclass(frozen=True, slots=True)
class Recipe:
    data: type[Data]
    bar: float | None  # of the data's metric, on held-out data, through the exported package; none for chosen data
    steps: int
    batch: int = 64
    rate: float = 1e-3
    tier: int = 1  # one trains fully, two clearly
    options: dict[str, Any] = field(default_factory=dict)  # of the data
    sizes: dict[str, Any] = field(default_factory=dict)  # where they differ from the defaults

    def stated(self) -> dict[str, Any]:
        """All that a training follows from, beside its seed and the code."""
        chosen = {name: getattr(self, name) for name in ("steps", "batch", "rate", "options", "sizes")}
        return {"data": self.data.name, **chosen}
