"""Letters, to be written backwards: what a decoder cannot do without looking at its source."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from torch import Tensor

from export.zoo.data.base import Data
from export.zoo.data.batches import HELD_OUT_SEED, next_word_loss, padded
from export.zoo.data.words import END, PAD, START, Words
from service.package import Decoding, Preprocessing

_HELD_OUT = 500


class Reversing(Data):
    """Texts of `length` letters at most."""

    name = "reversing"
    metric = "exact"

    def __init__(self, length: int = 12) -> None:
        self.length = length
        self._words = Words(ascii_lowercase, ends=True)
        self.chance = 1 / (length * len(ascii_lowercase))  # writing one letter and no more

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._words), "source": self.length + 4, "room": self.length + 4}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._words.write(folder, self.length + 4)

    def decoding(self) -> Decoding:
        return Decoding(start=(START,), stop=(END,), never=(PAD, START), max_new_tokens=self.length + 2)

    def example(self, rng: np.random.Generator) -> list[str]:
        return rng.choice(list(ascii_lowercase), int(rng.integers(1, self.length + 1))).tolist()

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        drawn = [self.example(rng) for _ in range(batch)]
        source, lengths = padded([self._words.encode(" ".join(letters)) for letters in drawn])
        target, _ = padded([[START, *self._words.encode(" ".join(letters[::-1]))] for letters in drawn])
        return next_word_loss(model(target[:, :-1], model.encode(source, lengths), lengths), target[:, 1:])

    def measure(self, served: Any, most: int | None = None) -> float:
        rng = np.random.default_rng(HELD_OUT_SEED)
        drawn = [self.example(rng) for _ in range(most or _HELD_OUT)]
        found = served.translate([" ".join(letters) for letters in drawn], beams=1)
        right = [each.text.split() == letters[::-1] for each, letters in zip(found, drawn, strict=True)]
        return float(np.mean(right))
