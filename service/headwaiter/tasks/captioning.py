"""Captioning of an image, optionally with the beginning of the caption as a prompt."""

from __future__ import annotations

import time

from headwaiter.engine.futures import Pending
from headwaiter.engine.session import Session
from headwaiter.engine.settings import ModelSettings
from headwaiter.package.manifest import Package
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.errors import check_length
from headwaiter.tasks.images import ImageReader
from headwaiter.tasks.results import GeneratedText
from headwaiter.tasks.text_generation import (
    DecoderInput,
    GeneratedTextStream,
    TextGenerationTask,
)


class Captioning(TextGenerationTask):
    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        manifest = package.manifest
        super().__init__(package, session, settings, max_length=manifest.limits["max_length"])
        assert manifest.preprocessing.image is not None
        self._reader = ImageReader(manifest.preprocessing.image, manifest, settings.limits.pixels)

    def caption(
        self,
        image: bytes,
        decoding: DecodingOptions,
        *,
        prompt: str = "",
        deadline: float | None = None,
        field: str = "image",
    ) -> Pending[GeneratedText]:
        started = time.monotonic()
        decoder_input = self._input(image, prompt, field)
        return self.submit_one(decoder_input, decoding, time.monotonic() - started, deadline, images=1)

    def caption_stream(
        self,
        image: bytes,
        decoding: DecodingOptions,
        *,
        prompt: str = "",
        deadline: float | None = None,
        field: str = "image",
    ) -> GeneratedTextStream:
        return self.stream([self._input(image, prompt, field)], decoding, deadline, None)

    def _input(self, image: bytes, prompt: str, field: str) -> DecoderInput:
        check_length(len(prompt), self.max_text_length, "prompt", "characters")
        tokens = [*self.defaults.decoder_start_token_ids, *(self.tokenizer.encode(prompt) if prompt else [])]
        check_length(len(tokens), self.max_length - 1, "prompt")
        return DecoderInput(tokens, {"pixels": self._reader.read(image, field).pixels[None]})
