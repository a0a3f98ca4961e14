"""Systems that make images out of noise."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from export.graph import Port
from export.onepass import OnePass
from export.runtime import Arrays
from export.zoo.checkpoint import Checkpoint
from export.zoo.families.base import OfZoo


class Painter(OfZoo, OnePass):
    ranges: ClassVar[dict[str, float]] = {"pixels": 1.0}

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        super().__init__(checkpoint, folder)
        self.model.critic = nn.Identity()  # it has done its work, and its weights are not packed

    def inputs(self) -> dict[str, Port]:
        return {"noise": Port(torch.float32, ("rows", self.config.noise))}

    def outputs(self) -> dict[str, Port]:
        return {"pixels": Port(torch.float32, ("rows", 3, self.config.image, self.config.image))}

    def sample(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        return {"noise": rng.standard_normal((rows, self.config.noise), np.float32)}

    def call(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {"pixels": self.model(inputs["noise"])}

    def limits(self) -> dict[str, int]:
        return {"height": self.config.image, "width": self.config.image}

    def noise(self) -> int:
        return int(self.config.noise)
