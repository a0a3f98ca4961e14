"""Captioning of an image, optionally with the beginning of the caption as a prompt."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from headwaiter.engine.futures import Pending
from headwaiter.engine.sequence import DecodeJob
from headwaiter.engine.settings import ModelSettings
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Package
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.errors import check_inputs, check_length
from headwaiter.tasks.images import ImageBudget, ImageReader
from headwaiter.tasks.messages import hypothesis_messages, parse_decoding
from headwaiter.tasks.model import ImageInput, Model, read_image, read_images
from headwaiter.tasks.results import GeneratedText
from headwaiter.tasks.task import StreamSubmission, Submission, TaskMethod, TextStreamMethod, UnaryMethod
from headwaiter.tasks.text_generation import DecoderInput, GeneratedTextStream, TextGenerationTask
from headwaiter.v1 import captioning_pb2 as pb


class Captioning(TextGenerationTask):
    def __init__(self, package: Package, engine: Engine[DecodeJob], settings: ModelSettings) -> None:
        super().__init__(package, engine, settings)
        image = self.manifest.preprocessing.image
        assert image is not None
        self._reader = ImageReader(image, self.manifest, settings.limits)

    def methods(self) -> Mapping[str, TaskMethod]:
        return {
            "Caption": UnaryMethod(self.parse, _format),
            "CaptionStream": TextStreamMethod(self.parse_stream, pb.CaptionStreamResponse),
        }

    def warm_up(self) -> None:
        self.caption(self.blank_image(), DecodingOptions(max_new_tokens=1, num_beams=1)).result()

    def parse(self, request: pb.CaptionRequest, deadline: float | None) -> Submission[GeneratedText]:
        check_inputs(request.image, "image")
        options = parse_decoding(request.decoding)
        images = {f"image[{index}]": image.data for index, image in enumerate(request.image)}
        shared: Any = {"prompt": request.prompt, "deadline": deadline, "budget": self._reader.budget(images)}
        inputs = [partial(self.caption, image, options, field=field, **shared) for field, image in images.items()]
        return Submission(inputs, cost=None)

    def parse_stream(self, request: pb.CaptionStreamRequest, deadline: float | None) -> StreamSubmission:
        options = parse_decoding(request.decoding)
        begin = partial(self.caption_stream, request.image.data, options, prompt=request.prompt, deadline=deadline)
        return StreamSubmission(begin, cost=None)

    def caption(
        self,
        image: bytes,
        decoding: DecodingOptions,
        *,
        prompt: str = "",
        deadline: float | None = None,
        field: str = "image",
        budget: ImageBudget | None = None,
    ) -> Pending[GeneratedText]:
        started = time.monotonic()
        decoder_input = self._input(image, prompt, field, budget)
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

    def _input(self, image: bytes, prompt: str, field: str, budget: ImageBudget | None = None) -> DecoderInput:
        check_length(len(prompt), self.max_text_length, "prompt", "characters")
        tokens = [*self.defaults.decoder_start_token_ids, *(self.tokenizer.encode(prompt) if prompt else [])]
        check_length(len(tokens), self.max_length - 1, "prompt")
        return DecoderInput(tokens, {"pixels": self._reader.read(image, field, budget).pixels[None]})


def _format(results: Sequence[GeneratedText]) -> pb.CaptionResponse:
    return pb.CaptionResponse(
        results=[pb.CaptionResult(hypotheses=hypothesis_messages(result.hypotheses)) for result in results]
    )


class CaptioningModel(Model[Captioning]):
    def caption(
        self, image: ImageInput | Sequence[ImageInput], *, prompt: str = "", **decoding: Any
    ) -> list[GeneratedText]:
        """Caption one or several images, given as bytes or paths; results are in the order of the images."""
        options = DecodingOptions(**decoding)
        return self.submit_all(
            read_images(image),
            lambda data, field: self.task.caption(data, options, prompt=prompt, field=field),
            "image",
        )

    def caption_stream(self, image: ImageInput, *, prompt: str = "", **decoding: Any) -> Iterable[str]:
        self.admit()
        return self.task.caption_stream(read_image(image), DecodingOptions(**decoding), prompt=prompt)
