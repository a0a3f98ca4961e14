"""Token ids to text as they fall: only what no later token can change is given out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

from service.preprocessing import TextSettings, TokenizerFile
from service.tasks.text import Tokenizer

_HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_LONGEST_HALF = 3
_RARE_CHARACTER = "\U0010fffd"
_WINDOW = 24
_CONTEXT = 8

# A suffix that a following token can still pull to the left, and text whose left side has no say in what follows it.
_LOOSE = re.compile(r"(?: +(?:n *'?|'[vr]?)?|')\Z")
_FIXED = re.compile(rf"[^\s{_HALF_CHARACTER}]")
_FIXED_WHERE_CLEANED = re.compile(rf"[^\s{_HALF_CHARACTER}.?!,'ntmsver]|[^\s{_HALF_CHARACTER}'] ")


class TextStream:
    """The pieces, put together, are `tokenizer.decode` of all ids.

    Each token decodes a window of the last few ids. The window moves on past text that is settled, so it stays small
    unless the ids are nothing but blanks, special tokens or broken characters.
    """

    def __init__(self, tokenizer: Tokenizer, settings: TextSettings) -> None:
        self._tokenizer = tokenizer
        self._cleans_spaces = settings.cleans_spaces
        self._spoiling_byte = _spoiling_byte(tokenizer) if isinstance(settings, TokenizerFile) else None
        self._ids: list[int] = []
        self._text = ""
        self._given = 0
        self._room = _WINDOW

    def push(self, token: int) -> str:
        """The text that is certain with this token, often empty."""
        self._ids.append(token)
        self._text = self._tokenizer.decode(self._ids)
        piece = self._text[self._given : self._certain()]
        self._given += len(piece)
        if len(self._ids) >= self._room:
            self._move_window()
        return piece

    def finish(self) -> str:
        """What was held back."""
        rest = self._text[self._given :]
        self._given = len(self._text)
        return rest

    def _certain(self) -> int:
        whole = self._text
        if self._spoiling_byte is None:
            certain = whole[:-_LONGEST_HALF] + whole[-_LONGEST_HALF:].rstrip(_HALF_CHARACTER)
        else:
            spoilt = self._tokenizer.decode([*self._ids, self._spoiling_byte])
            certain = whole[: _shared(whole, spoilt)].rstrip(_HALF_CHARACTER)
        if len(certain) < len(whole):
            certain = certain.rstrip()  # half a character may turn out to be a blank, and blanks at the end may go
        loose = _LOOSE.search(certain) if self._cleans_spaces else None
        return loose.start() if loose else len(certain)

    def _move_window(self) -> None:
        ids = self._ids[-_CONTEXT:]
        text = self._tokenizer.decode(ids)
        shared = _shared(reversed(self._text), reversed(text))
        settled = self._text[len(self._text) - shared : self._given]
        fixed = _FIXED_WHERE_CLEANED if self._cleans_spaces else _FIXED
        if fixed.search(settled):
            self._given += len(text) - len(self._text)
            self._ids, self._text, self._room = ids, text, _WINDOW
        else:
            self._room = len(self._ids) + _CONTEXT


def _spoiling_byte(tokenizer: Tokenizer) -> int | None:
    """A token that takes back characters before it, where a run of byte tokens is read as a whole or not at all."""
    ids = tokenizer.encode(_RARE_CHARACTER)
    halves = [token for token in ids if tokenizer.decode([token]) == _HALF_CHARACTER]
    if not halves or tokenizer.decode([*ids, halves[0]]).startswith(tokenizer.decode(ids)):
        return None
    return halves[0]


def _shared(one: Iterable[str], other: Iterable[str]) -> int:
    """How many characters are the same from the start on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
