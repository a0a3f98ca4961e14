"""Export family of image generators."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from headwaiter_export.arrays import Arrays
from headwaiter_export.families.single_pass import SinglePassFamily
from headwaiter_export.tracing.graph import TensorSpec
from headwaiter_export.zoo.checkpoint import Checkpoint
from headwaiter_export.zoo.families.base import ZooFamily


class ImageGenerator(ZooFamily, SinglePassFamily):
    output_ranges: ClassVar[dict[str, float]] = {"pixels": 1.0}

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        super().__init__(checkpoint, folder)
        self.model.critic = nn.Identity()  # used in training only; its weights are not exported

    def inputs(self) -> dict[str, TensorSpec]:
        return {"noise": TensorSpec(torch.float32, ("rows", self.config.noise))}

    def outputs(self) -> dict[str, TensorSpec]:
        return {"pixels": TensorSpec(torch.float32, ("rows", 3, self.config.image, self.config.image))}

    def sample_inputs(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        return {"noise": rng.standard_normal((rows, self.config.noise), np.float32)}

    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {"pixels": self.model(inputs["noise"])}

    def limits(self) -> dict[str, int]:
        return {"height": self.config.image, "width": self.config.image}

    def noise(self) -> int:
        return int(self.config.noise)
