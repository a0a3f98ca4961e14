"""Translation: splits text into sentences, translates them as one batch and restores the layout."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from headwaiter.engine.futures import Pending
from headwaiter.engine.sequence import DecodeJob, DecodingResult
from headwaiter.engine.settings import ModelSettings
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Package
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.errors import InputError, check_inputs, check_length, shorten
from headwaiter.tasks.messages import hypothesis_messages, optional, parse_decoding
from headwaiter.tasks.model import Model, as_list
from headwaiter.tasks.results import GeneratedText, Hypothesis, combine_finish_reasons
from headwaiter.tasks.sentences import Piece, join, split_to_fit
from headwaiter.tasks.task import StreamSubmission, Submission, TaskMethod, TextStreamMethod, UnaryMethod
from headwaiter.tasks.text_generation import DecoderInput, GeneratedTextStream, TextGenerationTask
from headwaiter.v1 import translation_pb2 as pb

_MAX_SENTENCE_TOKENS = 512  # models are trained on sentences, even if their position embeddings allow more


class Translation(TextGenerationTask):
    max_prompt_tokens = 2  # the start token and, for multilingual models, the target language

    def __init__(self, package: Package, engine: Engine[DecodeJob], settings: ModelSettings) -> None:
        super().__init__(package, engine, settings)
        self.max_source_length = min(package.manifest.limits["source"], _MAX_SENTENCE_TOKENS)

    def methods(self) -> Mapping[str, TaskMethod]:
        return {
            "Translate": UnaryMethod(self.parse, _format),
            "TranslateStream": TextStreamMethod(self.parse_stream, pb.TranslateStreamResponse),
        }

    def warm_up(self) -> None:
        self.translate("warm", DecodingOptions(max_new_tokens=1, num_beams=1)).result()

    def parse(self, request: pb.TranslateRequest, deadline: float | None) -> Submission[GeneratedText]:
        check_inputs(request.text, "text")
        self._check_languages(request)
        options, split = parse_decoding(request.decoding), optional(request, "split", True)
        inputs = [
            partial(self.translate, text, options, split=split, deadline=deadline, field=f"text[{index}]")
            for index, text in enumerate(request.text)
        ]
        return Submission(inputs, cost=sum(map(len, request.text)))

    def parse_stream(self, request: pb.TranslateStreamRequest, deadline: float | None) -> StreamSubmission:
        self._check_languages(request)
        options, split = parse_decoding(request.decoding), optional(request, "split", True)
        begin = partial(self.translate_stream, request.text, options, split=split, deadline=deadline)
        return StreamSubmission(begin, cost=len(request.text))

    def translate(
        self,
        text: str,
        decoding: DecodingOptions,
        *,
        split: bool = True,
        deadline: float | None = None,
        field: str = "text",
    ) -> Pending[GeneratedText]:
        """Translate a text; unless `split` is false, sentence by sentence with its layout preserved."""
        started = time.monotonic()
        pieces = self._pieces(text, split, field)
        inputs = self._inputs(pieces, field)
        preprocessing_seconds = time.monotonic() - started
        groups = self.submit(inputs, decoding, deadline=deadline)
        per_sentence = len(groups[0]) if groups else 1

        def finish(results: list[DecodingResult]) -> GeneratedText:
            by_sentence = [results[start : start + per_sentence] for start in range(0, len(results), per_sentence)]
            return self._join_sentences(pieces, by_sentence, preprocessing_seconds)

        return Pending(list(chain.from_iterable(groups)), finish)

    def translate_stream(
        self,
        text: str,
        decoding: DecodingOptions,
        *,
        split: bool = True,
        deadline: float | None = None,
        field: str = "text",
    ) -> GeneratedTextStream:
        pieces = self._pieces(text, split, field)
        return self.stream(self._inputs(pieces, field), decoding, deadline, SentenceLayout(pieces))

    def _pieces(self, text: str, split: bool, field: str) -> list[Piece]:
        check_length(len(text), self.max_text_length, field, "characters")
        if split:
            return split_to_fit(text, lambda part: len(self.tokenizer.encode(part)), self.max_source_length)
        return [Piece(text, translatable=bool(text.strip()))] if text else []

    def _inputs(self, pieces: Sequence[Piece], field: str) -> list[DecoderInput]:
        sources = [self.tokenizer.encode(piece.text) for piece in pieces if piece.translatable]
        check_length(max(map(len, sources), default=0), self.max_source_length, field)  # one character can exceed it
        return [
            DecoderInput(self.defaults.decoder_start_token_ids, {"tokens": np.array(ids)}, len(ids)) for ids in sources
        ]

    def _check_languages(self, request: pb.TranslateRequest | pb.TranslateStreamRequest) -> None:
        """Raise InputError if the request states a language other than the model's."""
        for side, supported in (self.manifest.languages or {}).items():
            field = f"{side}_language"
            language = optional(request, field, supported)
            if language != supported:
                raise InputError(
                    f"{field} is {shorten(repr(language))}; this model supports {supported!r}", field=field
                )

    def _join_sentences(
        self, pieces: list[Piece], results: list[list[DecodingResult]], preprocessing_seconds: float
    ) -> GeneratedText:
        """Join the best hypotheses of all sentences, then the second best ones, and so on."""
        sentences = [self.hypotheses(group) for group in results]
        joined = []
        for rank in range(max(map(len, sentences), default=1)):
            selected = [hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in sentences]
            score = sum(hypothesis.score for hypothesis in selected) / len(selected) if selected else 0.0
            finish_reason = combine_finish_reasons(hypothesis.finish_reason for hypothesis in selected)
            text = join(pieces, [hypothesis.text for hypothesis in selected])
            joined.append(Hypothesis(text, score, finish_reason))
        usage, timing = self.usage_and_timing(list(chain.from_iterable(results)), preprocessing_seconds)
        best = tuple(hypotheses[0] for hypotheses in sentences)
        return GeneratedText(tuple(joined), usage, timing, sentences=best)


class SentenceLayout:
    """Puts translated sentences into the layout of the source, one sentence at a time."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._sentences = [index for index, piece in enumerate(pieces) if piece.translatable]

    def segment(self, previous: str, index: int, text: str) -> str:
        end = self._sentences[index] + 1
        if index == 0:
            return join(self._pieces[:end], [text])
        return join(self._pieces[self._sentences[index - 1] : end], [previous, text])[len(previous) :]

    def ending(self, last: str) -> str:
        if not self._sentences:
            return join(self._pieces, [])
        return join(self._pieces[self._sentences[-1] :], [last])[len(last) :]


def _format(results: Sequence[GeneratedText]) -> pb.TranslateResponse:
    return pb.TranslateResponse(
        results=[
            pb.TranslateResult(
                hypotheses=hypothesis_messages(result.hypotheses), sentences=hypothesis_messages(result.sentences)
            )
            for result in results
        ]
    )


class TranslationModel(Model[Translation]):
    def translate(self, text: str | Sequence[str], *, split: bool = True, **decoding: Any) -> list[GeneratedText]:
        """Translate one or several texts; results are in the order of the texts."""
        options = DecodingOptions(**decoding)
        return self.submit_all(
            as_list(text), lambda item, field: self.task.translate(item, options, split=split, field=field), "text"
        )

    def translate_stream(self, text: str, *, split: bool = True, **decoding: Any) -> Iterable[str]:
        self.admit()
        return self.task.translate_stream(text, DecodingOptions(**decoding), split=split)
