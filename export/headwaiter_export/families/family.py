"""The interface between a model family and the export pipeline, and the registry of families."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from transformers import PreTrainedModel

from headwaiter.package.manifest import DecodingDefaults, Policy, Preprocessing, Task
from headwaiter.package.preprocessing import TextSettings
from headwaiter_export.errors import SourceError
from headwaiter_export.packaging.image_processors import convert_image_processor
from headwaiter_export.packaging.tokenizers import convert_tokenizer
from headwaiter_export.tracing.attention import with_fused_attention
from headwaiter_export.tracing.graph import GraphSpec


class Family(ABC):
    """One architecture: how its model is split into graphs, called and described. The checks are in `validation/`."""

    name: str
    task: Task
    transformers_class: ClassVar[str]  # class that loads the checkpoint
    reads_text: ClassVar[bool] = False
    reads_images: ClassVar[bool] = False
    # Why attention cannot be fused; such a family is exported only with --allow-unfused.
    unfused_reason: ClassVar[str | None] = None
    # Why some attention has no fused operator by design; such a family is exported by default.
    no_fused_operator_reason: str | None = None
    output_ranges: ClassVar[dict[str, float]] = {}  # value ranges of outputs, where known in advance

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        self.model: Any = model.eval()
        self.config: Any = model.config
        self.folder = folder
        self.write_tokenizer: Callable[[Path], TextSettings] = partial(convert_tokenizer, folder)

    def tracing(self) -> AbstractContextManager[None]:
        """Return the context in which graphs are traced; it replaces attention by the fused operators."""
        return with_fused_attention(self.model) if self.unfused_reason is None else nullcontext()

    @abstractmethod
    def graphs(self) -> list[GraphSpec]: ...

    @abstractmethod
    def limits(self) -> dict[str, int]:
        """Return the maximum sizes of the inputs, such as `length`, `source`, `max_length`, `height` and `width`."""

    def preprocessing(self, target: Path) -> Preprocessing:
        """Return the preprocessing settings, writing the tokenizer files they refer to into `target`."""
        return Preprocessing(
            text=self.write_tokenizer(target) if self.reads_text else None,
            image=convert_image_processor(self.folder) if self.reads_images else None,
        )

    def decoding(self) -> DecodingDefaults | None:
        return None

    def policy(self) -> Policy | None:
        return None

    def noise(self) -> int | None:
        """Return the number of noise inputs per image, for an image generator."""
        return None

    def labels(self) -> tuple[str, ...] | None:
        return None

    def multi_label(self) -> bool:
        return False


_families: dict[str, type[Family]] = {}
F = TypeVar("F", bound=type[Family])


def family(name: str) -> Callable[[F], F]:
    """Register a family under the `model_type` of its config.json."""

    def register(cls: F) -> F:
        cls.name = name
        _families[name] = cls
        return cls

    return register


def families() -> dict[str, type[Family]]:
    """Return all families by `model_type`, importing every module of this package."""
    import headwaiter_export.families as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_families.items()))


def find_family(model_type: str) -> type[Family]:
    supported = families()
    if model_type not in supported:
        raise SourceError(f"model_type {model_type!r} is not supported; supported are {', '.join(supported)}.")
    return supported[model_type]
