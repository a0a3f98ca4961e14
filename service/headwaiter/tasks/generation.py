"""Text generation from a prompt."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from headwaiter.engine.futures import Pending
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.errors import InputError, check_inputs, check_length
from headwaiter.tasks.messages import hypothesis_messages, parse_decoding
from headwaiter.tasks.model import Model, as_list
from headwaiter.tasks.results import GeneratedText
from headwaiter.tasks.task import StreamSubmission, Submission, TaskMethod, TextStreamMethod, UnaryMethod
from headwaiter.tasks.text_generation import DecoderInput, GeneratedTextStream, TextGenerationTask
from headwaiter.v1 import generation_pb2 as pb


class Generation(TextGenerationTask):
    def methods(self) -> Mapping[str, TaskMethod]:
        return {
            "Generate": UnaryMethod(self.parse, _format),
            "GenerateStream": TextStreamMethod(self.parse_stream, pb.GenerateStreamResponse),
        }

    def warm_up(self) -> None:
        self.generate("warm", DecodingOptions(max_new_tokens=1, num_beams=1)).result()

    def parse(self, request: pb.GenerateRequest, deadline: float | None) -> Submission[GeneratedText]:
        check_inputs(request.prompt, "prompt")
        options = parse_decoding(request.decoding)
        inputs = [
            partial(self.generate, prompt, options, deadline=deadline, field=f"prompt[{index}]")
            for index, prompt in enumerate(request.prompt)
        ]
        return Submission(inputs, cost=sum(map(len, request.prompt)))

    def parse_stream(self, request: pb.GenerateStreamRequest, deadline: float | None) -> StreamSubmission:
        options = parse_decoding(request.decoding)
        begin = partial(self.generate_stream, request.prompt, options, deadline=deadline)
        return StreamSubmission(begin, cost=len(request.prompt))

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


def _format(results: Sequence[GeneratedText]) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        results=[pb.GenerateResult(hypotheses=hypothesis_messages(result.hypotheses)) for result in results]
    )


class GenerationModel(Model[Generation]):
    def generate(self, prompt: str | Sequence[str], **decoding: Any) -> list[GeneratedText]:
        """Generate text for one or several prompts; results are in the order of the prompts."""
        options = DecodingOptions(**decoding)
        return self.submit_all(
            as_list(prompt), lambda item, field: self.task.generate(item, options, field=field), "prompt"
        )

    def generate_stream(self, prompt: str, **decoding: Any) -> Iterable[str]:
        self.admit()
        return self.task.generate_stream(prompt, DecodingOptions(**decoding))
