"""ListOps (Nangia and Bowman 2018) of any length: nested lists to evaluate, `[max 3 [min 7 5 9 ] 1 ]` is 5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headwaiter.package.manifest import Preprocessing
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batches import HELD_OUT_SEED, accuracy, pad_sequences
from headwaiter_export.zoo.data.word_tokenizer import WordTokenizer
from headwaiter_export.zoo.model import TextClassifier

_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "max": max,
    "min": min,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
_HELD_OUT, _VALIDATION_EXAMPLES = 500, 200


class ListOps(Dataset):
    """Lists of `length` / 2 to `length` tokens, nested at most once."""

    name = "listops"
    compatible_models = (TextClassifier,)
    metric = "accuracy"
    chance_level = 0.27  # always answering 9

    def __init__(self, length: int = 48) -> None:
        self.length = length
        opening_tokens = [f"[{name}" for name in _OPERATIONS]
        self._tokenizer = WordTokenizer([*map(str, range(10)), *opening_tokens, "]"])

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._tokenizer), "length": self.length, "classes": 10}

    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(10)))

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._tokenizer.write(folder, self.length)

    def example(self, rng: np.random.Generator) -> tuple[str, int]:
        num_tokens = int(rng.integers(self.length // 2, self.length + 1)) - 2
        return self._sample_list(rng, num_tokens, depth=2)

    def _sample_list(self, rng: np.random.Generator, num_tokens: int, depth: int) -> tuple[str, int]:
        """Return a list whose members take `num_tokens` tokens, and its value."""
        name = str(rng.choice(list(_OPERATIONS)))
        parts, values = [], []
        while num_tokens:
            inner = int(rng.integers(1, 9))
            if depth > 1 and num_tokens >= inner + 2 and rng.random() < 0.15:
                text, value = self._sample_list(rng, inner, depth - 1)
                num_tokens -= inner + 2
            else:
                value = int(rng.integers(10))
                text, num_tokens = str(value), num_tokens - 1
            parts.append(text)
            values.append(value)
        return f"[{name} {' '.join(parts)} ]", _OPERATIONS[name](values)

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        return functional.cross_entropy(*self._forward(model, rng, batch_size))

    def validate(self, model: Any, rng: np.random.Generator) -> float:
        return accuracy(*self._forward(model, rng, _VALIDATION_EXAMPLES))

    def _forward(self, model: Any, rng: np.random.Generator, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return scores and targets."""
        examples = [self.example(rng) for _ in range(batch_size)]
        tokens, lengths = pad_sequences([self._tokenizer.encode(text) for text, _ in examples])
        return model(tokens, lengths), torch.tensor([target for _, target in examples])

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        rng = np.random.default_rng(HELD_OUT_SEED)
        examples = [self.example(rng) for _ in range(max_examples or _HELD_OUT)]
        results = served.classify(text=[text for text, _ in examples], top_k=1)
        return float(
            np.mean([labels[0].index == target for labels, (_, target) in zip(results, examples, strict=True)])
        )
