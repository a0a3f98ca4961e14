"""What a model family tells the pipeline, and the list of families."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from transformers import PreTrainedModel

from export.attention import with_fused_attention
from export.errors import SourceError
from export.graph import Graph
from export.images import convert_image_processor
from export.runtime import Arrays, Runtime
from export.tokenizers import convert_tokenizer
from service.package import Decoding, Parity, Policy, Preprocessing, Task
from service.preprocessing import TextSettings


class Family(ABC):
    """One architecture: how its trained model becomes graphs, and what the answers are compared with."""

    name: str
    task: Task
    head: ClassVar[str]  # the transformers class that the checkpoint must hold
    reads_text: ClassVar[bool] = False
    reads_images: ClassVar[bool] = False
    cannot_fuse: ClassVar[str | None] = None  # why attention stays unfused, where it has to
    unfusable: str | None = None  # why a softmax is no attention that an operator knows; nothing is lost by it
    ranges: ClassVar[dict[str, float]] = {}  # spreads of outputs that are known beforehand

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        self.model: Any = model.eval()
        self.config: Any = model.config
        self.folder = folder
        self.write_tokenizer: Callable[[Path], TextSettings] = partial(convert_tokenizer, folder)

    def tracing(self) -> AbstractContextManager[None]:
        """Around the tracing of graphs: attention becomes the fused operator."""
        return with_fused_attention(self.model) if self.cannot_fuse is None else nullcontext()

    @abstractmethod
    def graphs(self) -> list[Graph]: ...

    @abstractmethod
    def limits(self) -> dict[str, int]: ...

    @abstractmethod
    def check(self, runtime: Runtime) -> Parity:
        """Compares the graphs with the original in torch."""

    @abstractmethod
    def trial(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        """Answers of the graphs to made-up inputs: what precisions are compared on."""

    def preprocessing(self, target: Path) -> Preprocessing:
        return Preprocessing(
            text=self.write_tokenizer(target) if self.reads_text else None,
            image=convert_image_processor(self.folder) if self.reads_images else None,
        )

    def decoding(self) -> Decoding | None:
        return None

    def policy(self) -> Policy | None:
        return None

    def noise(self) -> int | None:
        """How many random numbers an image is made of, of a model that makes images."""
        return None

    def labels(self) -> tuple[str, ...] | None:
        return None

    def multi_label(self) -> bool:
        return False


_families: dict[str, type[Family]] = {}
F = TypeVar("F", bound=type[Family])


def family(name: str) -> Callable[[F], F]:
    """Registers a family under the `model_type` of its config.json."""

    def register(cls: F) -> F:
        cls.name = name
        _families[name] = cls
        return cls

    return register


def families() -> dict[str, type[Family]]:
    import export.families as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return dict(sorted(_families.items()))


def family_of(model_type: str) -> type[Family]:
    known = families()
    if model_type not in known:
        raise SourceError(f"The family {model_type!r} is not known; known are {', '.join(known)}.")
    return known[model_type]
