"""Common parts of translation, captioning and text generation: a tokenizer, a decoder engine and text streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol

from headwaiter.engine.admission import MAX_QUEUED_JOBS
from headwaiter.engine.factory import decoder_max_length
from headwaiter.engine.futures import Pending, Stream
from headwaiter.engine.jobs import expect_jobs
from headwaiter.engine.sequence import DecodeJob, DecodingResult
from headwaiter.engine.session import Arrays
from headwaiter.engine.settings import ModelSettings
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Package
from headwaiter.tasks.decoding import DecodingLimits, DecodingOptions, resolve
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.results import GeneratedText, Hypothesis, Timing, Usage, combine_finish_reasons
from headwaiter.tasks.streaming import IncrementalDetokenizer
from headwaiter.tasks.task import Task
from headwaiter.tasks.text import Tokenizer


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """One sequence to decode: the decoder prompt, and the encoder input if the model has an encoder."""

    prompt: Sequence[int]
    source: Arrays
    source_length: int = 0


class TextGenerationTask(Task[Engine[DecodeJob]]):
    """A decoder with a tokenizer. `max_length` limits prompt and generated tokens together."""

    decoding_limits: DecodingLimits

    def __init__(self, package: Package, engine: Engine[DecodeJob], settings: ModelSettings) -> None:
        super().__init__(package, engine, settings)
        manifest = package.manifest
        assert manifest.decoding is not None
        assert manifest.preprocessing.text is not None
        self.defaults, self.text_settings = manifest.decoding, manifest.preprocessing.text
        self.tokenizer = Tokenizer.open(package.folder, self.text_settings)
        limits = settings.limits
        self.max_length = decoder_max_length(manifest.limits["max_length"], limits.new_tokens, self.max_prompt_tokens)
        self.max_text_length = limits.text
        self.decoding_limits = DecodingLimits(
            new_tokens=min(limits.new_tokens, self.max_length - 1),
            num_beams=min(limits.num_beams, settings.max_sequences),
        )

    def submit(
        self,
        inputs: Sequence[DecoderInput],
        decoding: DecodingOptions,
        *,
        deadline: float | None = None,
        on_token: Callable[[int, int], None] | None = None,
    ) -> list[list[Future[DecodingResult]]]:
        """Submit the inputs and return their futures, several per input if several sequences are sampled.

        `on_token(input index, token)` is called on the engine's thread. If one job is rejected, all are cancelled.
        """
        parameters = resolve(decoding, self.defaults, self.decoding_limits)
        if (total := expect_jobs(len(inputs) * len(parameters))) > MAX_QUEUED_JOBS:
            message = (
                f"the request has at least {total:,} sentences; the limit is {MAX_QUEUED_JOBS:,}: send it in parts"
            )
            raise InputError(message, field="", limit=MAX_QUEUED_JOBS)
        jobs = []
        for index, decoder_input in enumerate(inputs):
            callback = None if on_token is None else partial(on_token, index)
            shared = (decoder_input.source, decoder_input.source_length, tuple(decoder_input.prompt))
            jobs.append([DecodeJob(*shared, params, callback, deadline=deadline) for params in parameters])
        futures = [[job.future for job in group] for group in jobs]
        try:
            for job in chain.from_iterable(jobs):
                self.engine.submit(job)
        except BaseException:
            for future in chain.from_iterable(futures):
                future.cancel()
            raise
        return futures

    def submit_one(
        self,
        decoder_input: DecoderInput,
        decoding: DecodingOptions,
        preprocessing_seconds: float,
        deadline: float | None,
        images: int,
    ) -> Pending[GeneratedText]:
        (futures,) = self.submit([decoder_input], decoding, deadline=deadline)
        return Pending(futures, lambda results: self.build_result(results, preprocessing_seconds, images))

    def build_result(
        self, results: list[DecodingResult], preprocessing_seconds: float, images: int = 0
    ) -> GeneratedText:
        return GeneratedText(self.hypotheses(results), *self.usage_and_timing(results, preprocessing_seconds, images))

    def hypotheses(self, results: list[DecodingResult]) -> tuple[Hypothesis, ...]:
        """Return the hypotheses of all results as text, best first."""
        hypotheses = chain.from_iterable(result.hypotheses for result in results)
        best_first = sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
        return tuple(
            Hypothesis(self.tokenizer.decode(hypothesis.tokens), hypothesis.score, hypothesis.finish_reason)
            for hypothesis in best_first
        )

    @staticmethod
    def usage_and_timing(
        results: list[DecodingResult], preprocessing_seconds: float, images: int = 0
    ) -> tuple[Usage, Timing]:
        """Return the total usage, and the longest queue and run time of any result."""
        input_tokens = sum(result.input_tokens for result in results)
        output_tokens = sum(result.output_tokens for result in results)
        queue_seconds = max((result.queue_seconds for result in results), default=0.0)
        run_seconds = max((result.run_seconds for result in results), default=0.0)
        timing = Timing(1e3 * queue_seconds, 1e3 * preprocessing_seconds, 1e3 * run_seconds)
        return Usage(input_tokens, output_tokens, images), timing

    def stream(
        self,
        inputs: Sequence[DecoderInput],
        decoding: DecodingOptions,
        deadline: float | None,
        layout: TextLayout | None,
    ) -> GeneratedTextStream:
        """Submit the inputs and stream their text, arranged by `layout` (default: concatenated)."""
        if decoding.num_return_sequences not in (None, 1):
            raise InputError(
                f"decoding.num_return_sequences is {decoding.num_return_sequences}; for streams it must be 1",
                field="decoding.num_return_sequences",
                limit=1,
            )
        events: Stream[tuple[int, int | None]] = Stream()
        groups = self.submit(
            inputs, decoding, deadline=deadline, on_token=lambda index, token: events.put((index, token))
        )
        futures = [future for (future,) in groups]
        unfinished = set(range(len(futures)))

        def on_done(index: int, future: Future[DecodingResult]) -> None:
            unfinished.discard(index)
            error = None if future.cancelled() else future.exception()
            events.put((index, None))
            if error is not None or not unfinished:
                events.end(error)

        for index, future in enumerate(futures):
            future.add_done_callback(partial(on_done, index))
        if not futures:
            events.end()
        detokenizers = [IncrementalDetokenizer(self.tokenizer, self.text_settings) for _ in inputs]
        return GeneratedTextStream(self, events, futures, detokenizers, layout)


class TextLayout(Protocol):
    """Arranges the texts of the sequences of a stream, one segment per sequence and what follows the last one."""

    def segment(self, previous: str, index: int, text: str) -> str:
        """Return the text of a sequence with the layout before it; `previous` is the whole text of the one before."""

    def ending(self, last: str) -> str:
        """Return the layout after the last sequence."""


class _Concatenation:
    def segment(self, previous: str, index: int, text: str) -> str:  # noqa: ARG002
        return text

    def ending(self, last: str) -> str:  # noqa: ARG002
        return ""


class GeneratedTextStream:
    """Generated text as it becomes available. Iterate in a thread or a coroutine, then call `result()`.

    Leaving the iteration early cancels the request.
    """

    def __init__(
        self,
        task: TextGenerationTask,
        events: Stream[tuple[int, int | None]],
        futures: list[Future[DecodingResult]],
        detokenizers: list[IncrementalDetokenizer],
        layout: TextLayout | None,
    ) -> None:
        self._task, self._events, self._futures, self._detokenizers = task, events, futures, detokenizers
        self._layout = layout or _Concatenation()
        self._texts = [""] * len(detokenizers)
        self._complete = [False] * len(detokenizers)
        self._settled: list[str] = []  # segments of the complete sequences before the first unfinished one
        self._emitted = ""  # of the segment after the settled ones

    def __iter__(self) -> Iterator[str]:
        try:
            for event in self._events:
                if delta := self._on_event(*event):
                    yield delta
            if delta := self._final_delta():
                yield delta
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            async for event in self._events:
                if delta := self._on_event(*event):
                    yield delta
            if delta := self._final_delta():
                yield delta
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Cancel unfinished sequences and free their slots."""
        for future in self._futures:
            future.cancel()

    def result(self) -> GeneratedText:
        results = [future.result() for future in self._futures]
        usage, timing = self._task.usage_and_timing(results, 0.0)
        best = [result.hypotheses[0] for result in results]
        score = sum(sequence.score for sequence in best) / len(best) if best else 0.0
        finish_reason = combine_finish_reasons(sequence.finish_reason for sequence in best)
        return GeneratedText((Hypothesis("".join(self._settled), score, finish_reason),), usage, timing)

    def _on_event(self, index: int, token: int | None) -> str:
        if token is not None:
            self._texts[index] += self._detokenizers[index].push(token)
        else:
            self._finish_sequence(index)
        return self._next_delta()

    def _finish_sequence(self, index: int) -> None:
        """Take the final text from the result, because beam search reports no tokens while it runs."""
        future = self._futures[index]
        if not future.cancelled() and future.exception() is None:
            self._texts[index] = self._task.hypotheses([future.result()])[0].text
            self._complete[index] = True

    def _next_delta(self) -> str:
        """Return the new text of all sequences up to and including the first unfinished one.

        A segment is laid out again only while its own sequence is being generated.
        """
        deltas, count = [], len(self._texts)
        while len(self._settled) < count and self._complete[len(self._settled)]:
            segment = self._segment(len(self._settled))
            deltas.append(self._emit(segment))
            self._settled.append(segment)
            self._emitted = ""
        if len(self._settled) == count:
            ending = self._layout.ending(self._texts[-1] if self._texts else "")
            self._settled.append(ending)
            deltas.append(ending)
        elif len(self._settled) < count and self._texts[len(self._settled)]:
            deltas.append(self._emit(self._segment(len(self._settled))))
        return "".join(deltas)

    def _segment(self, index: int) -> str:
        return self._layout.segment(self._texts[index - 1] if index else "", index, self._texts[index])

    def _emit(self, segment: str) -> str:
        """Return what is new in the current segment; nothing if the final text is not what was streamed."""
        if not segment.startswith(self._emitted):
            return ""
        delta, self._emitted = segment[len(self._emitted) :], segment
        return delta

    def _final_delta(self) -> str:
        return self._next_delta() if all(self._complete) else ""
