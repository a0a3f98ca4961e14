"""Text to token ids and back, without the library that the model was trained with."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as RustTokenizer

from service.preprocessing import SentencePieceFiles, TextSettings, TokenizerFile

# Undone in this order after decoding, where the tokenizer asks for it.
_STRAY_SPACES = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
_LANGUAGE_CODE = re.compile(r">>.*?<<", re.DOTALL)

MAX_TEXT = 20_000  # characters, where nobody says otherwise


class Tokenizer(ABC):
    """Keeps no state between calls: threads may share it."""

    @staticmethod
    def open(folder: Path, settings: TextSettings) -> Tokenizer:
        if isinstance(settings, SentencePieceFiles):
            return _SentencePieceTokenizer(folder, settings)
        return _FileTokenizer(folder, settings)

    def encode(self, text: str) -> list[int]:
        """The ids of a text with the special tokens around it, of whatever length."""
        return self.encode_pair(text, None)[0]

    @abstractmethod
    def encode_pair(self, first: str, second: str | None) -> tuple[list[int], list[int]]:
        """The ids of one or two texts, and for each id the segment it belongs to."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens left out."""


class _FileTokenizer(Tokenizer):
    def __init__(self, folder: Path, settings: TokenizerFile) -> None:
        self._tokenizer = RustTokenizer.from_file(str(folder / settings.file))
        self._settings = settings

    def encode_pair(self, first: str, second: str | None) -> tuple[list[int], list[int]]:
        # An empty second text is none at all, as in transformers.
        encoding = self._tokenizer.encode(first, second or None)
        return encoding.ids, encoding.type_ids if self._settings.segments else [0] * len(encoding.ids)

    def decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return _without_stray_spaces(text) if self._settings.cleans_spaces else text


class _SentencePieceTokenizer(Tokenizer):
    def __init__(self, folder: Path, settings: SentencePieceFiles) -> None:
        self._settings = settings
        self._source = SentencePieceProcessor(model_file=str(folder / settings.source_model))
        self._target = SentencePieceProcessor(model_file=str(folder / settings.target_model))
        added = settings.added_tokens
        self._ids = _read_vocabulary(folder / settings.source_vocabulary) | added
        target_ids = _read_vocabulary(folder / settings.target_vocabulary)
        self._pieces = {index: piece for ids in (target_ids, added) for piece, index in ids.items()}
        self._special_tokens = frozenset(settings.special_tokens)
        self._special_ids = frozenset(self._ids[token] for token in settings.special_tokens)
        longest_first = sorted(added, key=len, reverse=True)
        self._added_token = re.compile("|".join(map(re.escape, longest_first))) if added else None

    def encode_pair(self, first: str, second: str | None) -> tuple[list[int], list[int]]:
        pieces = [piece for text in (first, second or "") for piece in self._cut(text)]
        ids = [self._ids.get(piece, self._settings.unk) for piece in pieces]
        if self._settings.appends_eos:
            ids.append(self._settings.eos)
        return ids, [0] * len(ids)

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self._piece(index) for index in ids if index not in self._special_ids]
        # With separate vocabularies a special token may have a second id, one that is not left out.
        runs = groupby(pieces, key=self._special_tokens.__contains__)
        text = "".join(
            "".join(f"{token} " for token in run) if special else self._target.decode_pieces(list(run))
            for special, run in runs
        )
        text = text.replace("▁", " ").strip()
        return _without_stray_spaces(text) if self._settings.cleans_spaces else text

    def _cut(self, text: str) -> Iterator[str]:
        start = 0
        for found in self._added_token.finditer(text) if self._added_token else ():
            yield from self._cut_plain(text[start : found.start()])
            yield found.group()
            start = found.end()
        yield from self._cut_plain(text[start:])

    def _cut_plain(self, text: str) -> Iterator[str]:
        if self._settings.language_codes and (code := _LANGUAGE_CODE.match(text)):
            yield code.group()
            text = text[code.end() :]
        if text:
            yield from self._source.encode(text, out_type=str)

    def _piece(self, index: int) -> str:
        return self._pieces[index] if index in self._pieces else self._target.id_to_piece(index)


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return vocabulary


def _without_stray_spaces(text: str) -> str:
    for spaced in _STRAY_SPACES:
        text = text.replace(spaced, spaced.strip())
    return text
