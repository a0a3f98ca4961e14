"""Captioning: an image, and perhaps the beginning of what is said of it."""

from __future__ import annotations

import time

from service.engine.futures import Pending
from service.engine.session import Session
from service.package import Package
from service.tasks.decoding import Decoding
from service.tasks.errors import demand_length
from service.tasks.images import ImageReader
from service.tasks.results import Words
from service.tasks.words import Input, WordStream, WordTask


class Captioning(WordTask):
    def __init__(
        self, package: Package, session: Session, *, rows: int, beams: int, new_tokens: int, text: int, pixels: int
    ) -> None:
        manifest = package.manifest
        room = manifest.limits["room"]
        super().__init__(package, session, rows=rows, beams=beams, new_tokens=min(new_tokens, room - 1), room=room)
        assert manifest.preprocessing.image is not None
        self.images = ImageReader(manifest.preprocessing.image, manifest, pixels)
        self.longest_text = text

    def caption(
        self, image: bytes, decoding: Decoding, *, prompt: str = "", deadline: float | None = None, field: str = "image"
    ) -> Pending[Words]:
        begun = time.monotonic()
        each = self._input(image, prompt, field)
        return self.pending(each, decoding, time.monotonic() - begun, deadline, images=1)

    def caption_stream(
        self, image: bytes, decoding: Decoding, *, prompt: str = "", deadline: float | None = None, field: str = "image"
    ) -> WordStream:
        return self.stream([self._input(image, prompt, field)], decoding, deadline, None)

    def _input(self, image: bytes, prompt: str, field: str) -> Input:
        demand_length(len(prompt), self.longest_text, "prompt", "characters")
        tokens = [*self.defaults.start, *(self.tokenizer.encode(prompt) if prompt else [])]
        demand_length(len(tokens), self.room - 1, "prompt")
        return Input(tokens, {"pixels": self.images.read(image, field).pixels[None]})
