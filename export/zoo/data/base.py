"""What data are to training: batches to learn from, and a measure on what was held out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from export.zoo.model import ZooModel
from service.package import Decoding, Preprocessing


class Data(ABC):
    """Libraries that only data need are imported where they are used: exporting a system takes none of them. What a
    subclass is made with are its options: numbers, each with a default."""

    name: ClassVar[str]  # as people type it
    learners: ClassVar[tuple[type[ZooModel], ...]]  # the kinds of systems that can learn from it
    metric: ClassVar[str]  # what `measure` measures, in a word or two
    chance: float  # what guessing gives
    higher_is_better: ClassVar[bool] = True
    keeps_best: ClassVar[bool] = False  # of the glimpses, where what is learned last is not the best

    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """The sizes of a system that these data decide."""

    @abstractmethod
    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        """On a batch drawn by `rng`."""

    def learned(self, model: Any) -> Any:
        """What is kept of a model that learns: itself, or an average of what it has been."""
        return model

    def glimpse(self, model: Any, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """The metric, or nearly, of a model that is still learning, on a few examples drawn by `rng`: for whoever
        watches, and for choosing among settings. Examples to be measured on are none of them."""
        return None

    @abstractmethod
    def measure(self, served: Any, most: int | None = None) -> float:
        """The metric of a model opened by `open_model`, on held-out examples, at most so many."""

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        """How inputs become arrays; writes the tokenizer into the folder where there is one."""
        return Preprocessing()

    def labels(self) -> tuple[str, ...] | None:
        return None

    def decoding(self) -> Decoding | None:
        return None

    def optimised(self, model: ZooModel) -> list[Any]:
        """What the optimiser changes."""
        return list(model.parameters())
