"""Letters and a sign, after which the letters are to come once more."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from torch import Tensor

from export.zoo.data.base import Data
from export.zoo.data.batches import HELD_OUT_SEED, exact, next_word_loss, padded
from export.zoo.data.words import END, PAD, START, Words
from export.zoo.model import Generator
from service.package import Decoding, Preprocessing

_AGAIN = ":"
_HELD_OUT, _GLIMPSED = 300, 200


class Copying(Data):
    """Texts of `length` letters at most, in an alphabet of so many."""

    name = "copying"
    learners = (Generator,)
    metric = "exact"

    def __init__(self, length: int = 10, letters: int = 10) -> None:
        self.length, self._letters = length, ascii_lowercase[:letters]
        self._words = Words([*self._letters, _AGAIN])
        self.chance = 1 / (length * letters)  # writing one letter and no more

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._words), "room": 2 * self.length + 4}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._words.write(folder, 2 * self.length + 4)

    def decoding(self) -> Decoding:
        return Decoding(start=(), stop=(END,), never=(PAD, START), max_new_tokens=self.length + 2)

    def example(self, rng: np.random.Generator) -> str:
        return " ".join(rng.choice(list(self._letters), int(rng.integers(1, self.length + 1))))

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        return next_word_loss(*self._written(model, rng, batch))

    def glimpse(self, model: Any, rng: np.random.Generator) -> float:
        return exact(*self._written(model, rng, _GLIMPSED))

    def _written(self, model: Any, rng: np.random.Generator, batch: int) -> tuple[Tensor, Tensor]:
        """Logits and what was to come. Only what follows the sign can be known, and only that counts."""
        texts = [self._words.encode(self.example(rng)) for _ in range(batch)]
        again = self._words.ids[_AGAIN]
        tokens, _ = padded([[*text, again, *text, END] for text in texts])
        target = tokens[:, 1:].clone()
        for index, text in enumerate(texts):
            target[index, : len(text)] = PAD
        return model(tokens[:, :-1]), target

    def measure(self, served: Any, most: int | None = None) -> float:
        rng = np.random.default_rng(HELD_OUT_SEED)
        texts = [self.example(rng) for _ in range(most or _HELD_OUT)]
        found = served.generate([f"{text} {_AGAIN}" for text in texts], beams=1)
        return float(np.mean([each.text == text for each, text in zip(found, texts, strict=True)]))
