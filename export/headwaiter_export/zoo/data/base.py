"""Base class of datasets: training batches and evaluation on held-out data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from headwaiter.package.manifest import DecodingDefaults, Preprocessing
from headwaiter_export.zoo.model import ZooModel


class Dataset(ABC):
    """Source of training batches and of an evaluation metric. The constructor arguments of a subclass are its options:
    numbers with defaults. Libraries that only a dataset needs are imported lazily, so that exporting requires none of
    them."""

    name: ClassVar[str]  # as typed on the command line
    compatible_models: ClassVar[tuple[type[ZooModel], ...]]
    metric: ClassVar[str]  # name of the metric of `evaluate`
    chance_level: float  # metric of random guessing
    higher_is_better: ClassVar[bool] = True
    keep_best: ClassVar[bool] = False  # save the model with the best validation metric instead of the last one

    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """Model sizes that the dataset determines."""

    @abstractmethod
    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        """Training loss on a batch drawn with `rng`."""

    def model_to_save(self, model: Any) -> Any:
        """The model to save at a checkpoint: the trained model itself, or an average of it."""
        return model

    def validate(self, model: Any, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """The metric, or an approximation of it, of the model in training on examples drawn with `rng`, disjoint from
        the held-out examples; None if not available."""
        return None

    @abstractmethod
    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        """The metric of a model opened with `open_model` on at most `max_examples` held-out examples."""

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        """Return the preprocessing settings; write the tokenizer to `folder` if there is one."""
        return Preprocessing()

    def labels(self) -> tuple[str, ...] | None:
        return None

    def decoding(self) -> DecodingDefaults | None:
        return None

    def parameter_groups(self, model: ZooModel) -> list[Any]:
        """Parameters or parameter groups for the optimizer."""
        return list(model.parameters())
