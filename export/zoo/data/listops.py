"""Nested lists with an answer: `[max 3 [min 7 5 9 ] 1 ]` is 5. After Nangia and Bowman 2018, and of any length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from export.zoo.data.base import Data
from export.zoo.data.batches import HELD_OUT_SEED, accuracy, padded
from export.zoo.data.words import Words
from export.zoo.model import TextClassifier
from service.package import Preprocessing

_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "max": max,
    "min": min,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
_HELD_OUT, _GLIMPSED = 500, 200


class ListOps(Data):
    """Lists of `length` tokens at most and half of that at least, nested once where there is room."""

    name = "listops"
    learners = (TextClassifier,)
    metric = "accuracy"
    chance = 0.27  # always answering 9

    def __init__(self, length: int = 48) -> None:
        self.length = length
        opened = [f"[{name}" for name in _OPERATIONS]
        self._words = Words([*map(str, range(10)), *opened, "]"])

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._words), "length": self.length, "classes": 10}

    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(10)))

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._words.write(folder, self.length)

    def example(self, rng: np.random.Generator) -> tuple[str, int]:
        places = int(rng.integers(self.length // 2, self.length + 1)) - 2
        return self._list(rng, places, depth=2)

    def _list(self, rng: np.random.Generator, places: int, depth: int) -> tuple[str, int]:
        """A list whose members take so many tokens."""
        name = str(rng.choice(list(_OPERATIONS)))
        parts, values = [], []
        while places:
            inner = int(rng.integers(1, 9))
            if depth > 1 and places >= inner + 2 and rng.random() < 0.15:
                text, value = self._list(rng, inner, depth - 1)
                places -= inner + 2
            else:
                value = int(rng.integers(10))
                text, places = str(value), places - 1
            parts.append(text)
            values.append(value)
        return f"[{name} {' '.join(parts)} ]", _OPERATIONS[name](values)

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        return functional.cross_entropy(*self._judged(model, rng, batch))

    def glimpse(self, model: Any, rng: np.random.Generator) -> float:
        return accuracy(*self._judged(model, rng, _GLIMPSED))

    def _judged(self, model: Any, rng: np.random.Generator, batch: int) -> tuple[Tensor, Tensor]:
        """Scores and answers."""
        drawn = [self.example(rng) for _ in range(batch)]
        tokens, lengths = padded([self._words.encode(text) for text, _ in drawn])
        return model(tokens, lengths), torch.tensor([answer for _, answer in drawn])

    def measure(self, served: Any, most: int | None = None) -> float:
        rng = np.random.default_rng(HELD_OUT_SEED)
        drawn = [self.example(rng) for _ in range(most or _HELD_OUT)]
        found = served.classify(text=[text for text, _ in drawn], top_k=1)
        return float(np.mean([labels[0].index == answer for labels, (_, answer) in zip(found, drawn, strict=True)]))
