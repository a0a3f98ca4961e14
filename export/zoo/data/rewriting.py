"""Texts to be written anew by a rule: what translators learn from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from export.zoo.data.base import Data
from export.zoo.data.batches import HELD_OUT_SEED, exact, next_word_loss, padded
from export.zoo.data.words import END, PAD, START, Words
from export.zoo.model import Translator, ZooModel
from export.zoo.recurrent import RecurrentTranslator
from service.package import Decoding, Preprocessing

_HELD_OUT, _GLIMPSED = 500, 200


class Rewriting(Data):
    """Sources and answers of `length` words at most."""

    metric = "exact"
    learners: ClassVar[tuple[type[ZooModel], ...]] = (Translator, RecurrentTranslator)

    def __init__(self, words: Sequence[str], length: int) -> None:
        self.length = length
        self._words = Words(words, ends=True)

    @abstractmethod
    def example(self, rng: np.random.Generator) -> tuple[list[str], list[str]]:
        """The words of a source and of its answer."""

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._words), "source": self.length + 4, "room": self.length + 4}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._words.write(folder, self.length + 4)

    def decoding(self) -> Decoding:
        return Decoding(start=(START,), stop=(END,), never=(PAD, START), max_new_tokens=self.length + 2)

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        return next_word_loss(*self._written(model, rng, batch))

    def glimpse(self, model: Any, rng: np.random.Generator) -> float:
        return exact(*self._written(model, rng, _GLIMPSED))

    def _written(self, model: Any, rng: np.random.Generator, batch: int) -> tuple[Tensor, Tensor]:
        """Logits and what was to come."""
        drawn = [self.example(rng) for _ in range(batch)]
        source, lengths = padded([self._words.encode(" ".join(given)) for given, _ in drawn])
        target, _ = padded([[START, *self._words.encode(" ".join(answer))] for _, answer in drawn])
        return model(target[:, :-1], model.encode(source, lengths), lengths), target[:, 1:]

    def measure(self, served: Any, most: int | None = None) -> float:
        rng = np.random.default_rng(HELD_OUT_SEED)
        drawn = [self.example(rng) for _ in range(most or _HELD_OUT)]
        found = served.translate([" ".join(given) for given, _ in drawn], beams=1)
        return float(np.mean([each.text.split() == answer for each, (_, answer) in zip(found, drawn, strict=True)]))
