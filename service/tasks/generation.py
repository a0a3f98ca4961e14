"""Generation: a prompt goes on."""

from __future__ import annotations

import time

from service.engine.futures import Pending
from service.engine.session import Session
from service.package import Package
from service.tasks.decoding import Decoding
from service.tasks.errors import InputError, demand_length
from service.tasks.results import Words
from service.tasks.words import Input, WordStream, WordTask


class Generation(WordTask):
    def __init__(
        self, package: Package, session: Session, *, rows: int, beams: int, new_tokens: int, text: int
    ) -> None:
        room = package.manifest.limits["room"]
        super().__init__(package, session, rows=rows, beams=beams, new_tokens=min(new_tokens, room - 1), room=room)
        self.longest_text = text

    def generate(
        self, prompt: str, decoding: Decoding, *, deadline: float | None = None, field: str = "prompt"
    ) -> Pending[Words]:
        begun = time.monotonic()
        each = self._input(prompt, field)
        return self.pending(each, decoding, time.monotonic() - begun, deadline, images=0)

    def generate_stream(
        self, prompt: str, decoding: Decoding, *, deadline: float | None = None, field: str = "prompt"
    ) -> WordStream:
        return self.stream([self._input(prompt, field)], decoding, deadline, None)

    def _input(self, prompt: str, field: str) -> Input:
        demand_length(len(prompt), self.longest_text, field, "characters")
        tokens = self.tokenizer.encode(prompt) or self._from_nothing(field)
        demand_length(len(tokens), self.room - 1, field)
        return Input(tokens, {})

    def _from_nothing(self, field: str) -> list[int]:
        if self.settings.bos is None:
            raise InputError(f"{field} is empty; this model needs something to go on from", field=field)
        return [self.settings.bos]
