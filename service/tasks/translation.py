"""Translation of real text: sentences are translated side by side, and line breaks and spacing stay as they were."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from service.engine.futures import Pending
from service.engine.sequence import Decoded
from service.engine.session import Session
from service.package import Package
from service.tasks.decoding import Decoding
from service.tasks.errors import demand_length
from service.tasks.results import Hypothesis, Words
from service.tasks.sentences import Piece, join, split_to_fit
from service.tasks.words import Input, WordStream, WordTask, room_for

_LONGEST_SENTENCE = 512  # tokens; models are trained on sentences, whatever their tables of positions hold


class Translation(WordTask):
    def __init__(
        self, package: Package, session: Session, *, rows: int, beams: int, new_tokens: int, text: int
    ) -> None:
        limits = package.manifest.limits
        room = room_for(limits["room"], 2, new_tokens)
        super().__init__(package, session, rows=rows, beams=beams, new_tokens=min(new_tokens, room - 1), room=room)
        self.longest_text = text
        self.longest_source = min(limits["source"], _LONGEST_SENTENCE)

    def translate(
        self, text: str, decoding: Decoding, *, split: bool = True, deadline: float | None = None, field: str = "text"
    ) -> Pending[Words]:
        begun = time.monotonic()
        pieces = self._pieces(text, split, field)
        inputs = self._inputs(pieces, field)
        prepared = time.monotonic() - begun
        parts = self.submit(inputs, decoding, deadline=deadline)
        futures = [future for each in parts for future in each]
        drawn = len(parts[0]) if parts else 1
        return Pending(futures, lambda answers: self._joined(pieces, answers, drawn, prepared))

    def translate_stream(
        self, text: str, decoding: Decoding, *, split: bool = True, deadline: float | None = None, field: str = "text"
    ) -> WordStream:
        pieces = self._pieces(text, split, field)
        return self.stream(self._inputs(pieces, field), decoding, deadline, partial(_laid_out, pieces))

    def _pieces(self, text: str, split: bool, field: str) -> list[Piece]:
        demand_length(len(text), self.longest_text, field, "characters")
        if split:
            return split_to_fit(text, lambda part: len(self.tokenizer.encode(part)), self.longest_source)
        return [Piece(text, translatable=bool(text.strip()))] if text else []

    def _inputs(self, pieces: Sequence[Piece], field: str) -> list[Input]:
        sources = [self.tokenizer.encode(piece.text) for piece in pieces if piece.translatable]
        demand_length(max(map(len, sources), default=0), self.longest_source, field)  # one character can be too much
        return [Input(self.defaults.start, {"tokens": np.array(ids)}, len(ids)) for ids in sources]

    def _joined(self, pieces: list[Piece], answers: list[Decoded], drawn: int, prepared: float) -> Words:
        """The best of each sentence together, then the second best of each, and so on."""
        each = [self.hypotheses(answers[first : first + drawn]) for first in range(0, len(answers), drawn)]
        ranks = max((len(found) for found in each), default=1)
        whole = []
        for rank in range(ranks):
            chosen = [found[min(rank, len(found) - 1)] for found in each]
            score = sum(one.score for one in chosen) / len(chosen) if chosen else 0.0
            whole.append(Hypothesis(join(pieces, [one.text for one in chosen]), score))
        usage, timing = self.account(answers, prepared)
        return Words(tuple(whole), usage, timing, sentences=tuple(found[0] for found in each))


def _laid_out(pieces: Sequence[Piece], texts: Sequence[str], *, complete: bool) -> str:
    places = [index for index, piece in enumerate(pieces) if piece.translatable]
    until = len(pieces) if complete and len(texts) == len(places) else places[len(texts) - 1] + 1
    return join(pieces[:until], texts)
