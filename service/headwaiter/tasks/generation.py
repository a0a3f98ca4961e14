"""Text generation from a prompt."""

from __future__ import annotations

import time

from headwaiter.engine.futures import Pending
from headwaiter.engine.session import Session
from headwaiter.engine.settings import ModelSettings
from headwaiter.package.manifest import Package
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.errors import InputError, check_length
from headwaiter.tasks.results import GeneratedText
from headwaiter.tasks.text_generation import (
    DecoderInput,
    GeneratedTextStream,
    TextGenerationTask,
)


class Generation(TextGenerationTask):
    def __init__(self, package: Package, session: Session, settings: ModelSettings) -> None:
        super().__init__(package, session, settings, max_length=package.manifest.limits["max_length"])

    def generate(
        self, prompt: str, decoding: DecodingOptions, *, deadline: float | None = None, field: str = "prompt"
    ) -> Pending[GeneratedText]:
        started = time.monotonic()
        decoder_input = self._input(prompt, field)
        return self.submit_one(decoder_input, decoding, time.monotonic() - started, deadline, images=0)

    def generate_stream(
        self, prompt: str, decoding: DecodingOptions, *, deadline: float | None = None, field: str = "prompt"
    ) -> GeneratedTextStream:
        return self.stream([self._input(prompt, field)], decoding, deadline, None)

    def _input(self, prompt: str, field: str) -> DecoderInput:
        check_length(len(prompt), self.max_text_length, field, "characters")
        tokens = self.tokenizer.encode(prompt) or self._bos_prompt(field)
        check_length(len(tokens), self.max_length - 1, field)
        return DecoderInput(tokens, {})

    def _bos_prompt(self, field: str) -> list[int]:
        if self.text_settings.bos is None:
            raise InputError(f"{field} is empty; this model requires at least 1 token", field=field)
        return [self.text_settings.bos]
