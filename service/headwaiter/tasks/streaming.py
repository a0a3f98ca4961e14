"""Incremental detokenization: emits text as soon as no later token can change it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

from headwaiter.package.preprocessing import TextSettings, TokenizerFile
from headwaiter.tasks.text import Tokenizer

_REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_MAX_PARTIAL_CHARACTERS = 3
_RARE_CHARACTER = "\U0010fffd"
_WINDOW = 24
_CONTEXT = 8

# Suffixes that clean-up of spaces may still change when a token follows.
_UNSTABLE_SUFFIX = re.compile(r"(?: +(?:n *'?|'[vr]?)?|')\Z")
# Text that decodes the same whatever precedes it, so that the window may start before it.
_STABLE = re.compile(rf"[^\s{_REPLACEMENT_CHARACTER}]")
_STABLE_WHEN_CLEANED = re.compile(rf"[^\s{_REPLACEMENT_CHARACTER}.?!,'ntmsver]|[^\s{_REPLACEMENT_CHARACTER}'] ")


class IncrementalDetokenizer:
    """Converts a stream of token ids to text. The concatenated pieces equal `tokenizer.decode` of all ids.

    Each token decodes a window of the most recent ids. The window moves past stable text, so it stays small unless the
    ids contain only spaces, special tokens or invalid characters.
    """

    def __init__(self, tokenizer: Tokenizer, settings: TextSettings) -> None:
        self._tokenizer = tokenizer
        self._cleans_spaces = settings.cleans_spaces
        self._invalidating_byte = _invalidating_byte(tokenizer) if isinstance(settings, TokenizerFile) else None
        self._ids: list[int] = []
        self._text = ""
        self._emitted = 0
        self._window_limit = _WINDOW

    def push(self, token: int) -> str:
        """Add a token and return the text that became stable, which is often empty."""
        self._ids.append(token)
        self._text = self._tokenizer.decode(self._ids)
        piece = self._text[self._emitted : self._stable_length()]
        self._emitted += len(piece)
        if len(self._ids) >= self._window_limit:
            self._move_window()
        return piece

    def finish(self) -> str:
        """Return the remaining text."""
        piece = self._text[self._emitted :]
        self._emitted = len(self._text)
        return piece

    def _stable_length(self) -> int:
        text = self._text
        if self._invalidating_byte is None:
            stable = text[:-_MAX_PARTIAL_CHARACTERS] + text[-_MAX_PARTIAL_CHARACTERS:].rstrip(_REPLACEMENT_CHARACTER)
        else:
            invalidated = self._tokenizer.decode([*self._ids, self._invalidating_byte])
            stable = text[: _common_prefix_length(text, invalidated)].rstrip(_REPLACEMENT_CHARACTER)
        if len(stable) < len(text):
            stable = stable.rstrip()  # the partial character may be whitespace, and trailing whitespace may be stripped
        unstable = _UNSTABLE_SUFFIX.search(stable) if self._cleans_spaces else None
        return unstable.start() if unstable else len(stable)

    def _move_window(self) -> None:
        ids = self._ids[-_CONTEXT:]
        text = self._tokenizer.decode(ids)
        shared = _common_prefix_length(reversed(self._text), reversed(text))
        emitted_in_both = self._text[len(self._text) - shared : self._emitted]
        stable = _STABLE_WHEN_CLEANED if self._cleans_spaces else _STABLE
        if stable.search(emitted_in_both):
            self._emitted += len(text) - len(self._text)
            self._ids, self._text, self._window_limit = ids, text, _WINDOW
        else:
            self._window_limit = len(self._ids) + _CONTEXT


def _invalidating_byte(tokenizer: Tokenizer) -> int | None:
    """Return a byte token that invalidates preceding byte tokens, or None if the tokenizer has no such tokens.

    Some tokenizers decode a run of byte tokens to replacement characters unless the whole run is valid UTF-8.
    """
    ids = tokenizer.encode(_RARE_CHARACTER)
    partial = [token for token in ids if tokenizer.decode([token]) == _REPLACEMENT_CHARACTER]
    if not partial or tokenizer.decode([*ids, partial[0]]).startswith(tokenizer.decode(ids)):
        return None
    return partial[0]


def _common_prefix_length(one: Iterable[str], other: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
