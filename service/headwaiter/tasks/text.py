"""Tokenizers: text to token ids and back, without depending on transformers."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as RustTokenizer

from headwaiter.package.preprocessing import SentencePieceFiles, TextSettings, TokenizerFile

# Applied in this order, as in transformers' `clean_up_tokenization`.
_STRAY_SPACES = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
_LANGUAGE_CODE = re.compile(r">>.*?<<", re.DOTALL)


class Tokenizer(ABC):
    """Encodes text as token ids and decodes them. Stateless, so threads may share it."""

    @staticmethod
    def open(folder: Path, settings: TextSettings) -> Tokenizer:
        if isinstance(settings, SentencePieceFiles):
            return _SentencePieceTokenizer(folder, settings)
        return _FileTokenizer(folder, settings)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text including special tokens, without truncation."""
        return self.encode_pair(text, None)[0]

    @abstractmethod
    def encode_pair(self, first: str, second: str | None) -> tuple[list[int], list[int]]:
        """Return the ids of one or two texts, and the segment (0 or 1) of each id."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, without special tokens."""


class _FileTokenizer(Tokenizer):
    def __init__(self, folder: Path, settings: TokenizerFile) -> None:
        self._tokenizer = RustTokenizer.from_file(str(folder / settings.file))
        self._settings = settings

    def encode_pair(self, first: str, second: str | None) -> tuple[list[int], list[int]]:
        # As in transformers, an empty second text is ignored.
        encoding = self._tokenizer.encode(first, second or None)
        return encoding.ids, encoding.type_ids if self._settings.segments else [0] * len(encoding.ids)

    def decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return _clean_up_spaces(text) if self._settings.cleans_spaces else text


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
        pieces = [piece for text in (first, second or "") for piece in self._split_pieces(text)]
        ids = [self._ids.get(piece, self._settings.unk) for piece in pieces]
        if self._settings.appends_eos:
            ids.append(self._settings.eos)
        return ids, [0] * len(ids)

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self._piece(index) for index in ids if index not in self._special_ids]
        # With separate vocabularies a special token may have a second id, which is not skipped above.
        runs = groupby(pieces, key=self._special_tokens.__contains__)
        text = "".join(
            "".join(f"{token} " for token in run) if special else self._target.decode_pieces(list(run))
            for special, run in runs
        )
        text = text.replace("▁", " ").strip()
        return _clean_up_spaces(text) if self._settings.cleans_spaces else text

    def _split_pieces(self, text: str) -> Iterator[str]:
        start = 0
        for match in self._added_token.finditer(text) if self._added_token else ():
            yield from self._split_plain(text[start : match.start()])
            yield match.group()
            start = match.end()
        yield from self._split_plain(text[start:])

    def _split_plain(self, text: str) -> Iterator[str]:
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


def _clean_up_spaces(text: str) -> str:
    for spaced in _STRAY_SPACES:
        text = text.replace(spaced, spaced.strip())
    return text
