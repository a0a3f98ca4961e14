"""Base class of rule-based text rewriting, the training task of translators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from headwaiter.package.manifest import DecodingDefaults, Preprocessing
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batches import HELD_OUT_SEED, exact_match, next_token_loss, pad_sequences
from headwaiter_export.zoo.data.word_tokenizer import BOS, EOS, PAD, WordTokenizer
from headwaiter_export.zoo.model import Translator, ZooModel
from headwaiter_export.zoo.recurrent import RecurrentTranslator

_HELD_OUT, _VALIDATION_EXAMPLES = 500, 200


class Rewriting(Dataset):
    """Sources and targets of up to `length` words."""

    metric = "exact"
    compatible_models: ClassVar[tuple[type[ZooModel], ...]] = (Translator, RecurrentTranslator)

    def __init__(self, words: Sequence[str], length: int) -> None:
        self.length = length
        self._tokenizer = WordTokenizer(words, append_eos=True)

    @abstractmethod
    def example(self, rng: np.random.Generator) -> tuple[list[str], list[str]]:
        """Return the words of a source and of its target."""

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._tokenizer), "source": self.length + 4, "room": self.length + 4}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._tokenizer.write(folder, self.length + 4)

    def decoding(self) -> DecodingDefaults:
        return DecodingDefaults(
            decoder_start_token_ids=(BOS,),
            eos_token_ids=(EOS,),
            suppress_tokens=(PAD, BOS),
            max_new_tokens=self.length + 2,
        )

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        return next_token_loss(*self._forward(model, rng, batch_size))

    def validate(self, model: Any, rng: np.random.Generator) -> float:
        return exact_match(*self._forward(model, rng, _VALIDATION_EXAMPLES))

    def _forward(self, model: Any, rng: np.random.Generator, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return logits and target tokens."""
        examples = [self.example(rng) for _ in range(batch_size)]
        source, lengths = pad_sequences([self._tokenizer.encode(" ".join(words)) for words, _ in examples])
        target, _ = pad_sequences([[BOS, *self._tokenizer.encode(" ".join(words))] for _, words in examples])
        return model(target[:, :-1], model.encode(source, lengths), lengths), target[:, 1:]

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        rng = np.random.default_rng(HELD_OUT_SEED)
        examples = [self.example(rng) for _ in range(max_examples or _HELD_OUT)]
        results = served.translate([" ".join(words) for words, _ in examples], num_beams=1)
        return float(
            np.mean([result.text.split() == target for result, (_, target) in zip(results, examples, strict=True)])
        )
