"""Copying: letters and a separator, to be continued with the same letters."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from torch import Tensor

from headwaiter.package.manifest import DecodingDefaults, Preprocessing
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batches import HELD_OUT_SEED, exact_match, next_token_loss, pad_sequences
from headwaiter_export.zoo.data.word_tokenizer import BOS, EOS, PAD, WordTokenizer
from headwaiter_export.zoo.model import Generator

_SEPARATOR = ":"
_HELD_OUT, _VALIDATION_EXAMPLES = 300, 200


class Copying(Dataset):
    """Texts of up to `length` letters from an alphabet of `letters` letters."""

    name = "copying"
    compatible_models = (Generator,)
    metric = "exact"

    def __init__(self, length: int = 10, letters: int = 10) -> None:
        self.length, self._letters = length, ascii_lowercase[:letters]
        self._tokenizer = WordTokenizer([*self._letters, _SEPARATOR])
        self.chance_level = 1 / (length * letters)  # generating a single letter

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._tokenizer), "room": 2 * self.length + 4}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._tokenizer.write(folder, 2 * self.length + 4)

    def decoding(self) -> DecodingDefaults:
        return DecodingDefaults(
            decoder_start_token_ids=(), eos_token_ids=(EOS,), suppress_tokens=(PAD, BOS), max_new_tokens=self.length + 2
        )

    def example(self, rng: np.random.Generator) -> str:
        return " ".join(rng.choice(list(self._letters), int(rng.integers(1, self.length + 1))))

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        return next_token_loss(*self._forward(model, rng, batch_size))

    def validate(self, model: Any, rng: np.random.Generator) -> float:
        return exact_match(*self._forward(model, rng, _VALIDATION_EXAMPLES))

    def _forward(self, model: Any, rng: np.random.Generator, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return logits and target tokens. Only the tokens after the separator are predictable, so only those count."""
        texts = [self._tokenizer.encode(self.example(rng)) for _ in range(batch_size)]
        separator = self._tokenizer.ids[_SEPARATOR]
        tokens, _ = pad_sequences([[*text, separator, *text, EOS] for text in texts])
        target = tokens[:, 1:].clone()
        for index, text in enumerate(texts):
            target[index, : len(text)] = PAD
        return model(tokens[:, :-1]), target

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        rng = np.random.default_rng(HELD_OUT_SEED)
        texts = [self.example(rng) for _ in range(max_examples or _HELD_OUT)]
        results = served.generate([f"{text} {_SEPARATOR}" for text in texts], num_beams=1)
        return float(np.mean([result.text == text for result, text in zip(results, texts, strict=True)]))
