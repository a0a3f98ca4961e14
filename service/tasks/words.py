"""What translation, captioning and generation share: tokens to the engine, hypotheses back as text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol

from service.engine.decoder import open_decoder
from service.engine.futures import Pending, Stream
from service.engine.sequence import Decoded, DecodeJob
from service.engine.session import Arrays, Session
from service.package import Package, padded_length
from service.tasks.decoding import Bounds, Decoding, settle
from service.tasks.errors import InputError
from service.tasks.results import Hypothesis, Timing, Usage, Words
from service.tasks.streaming import TextStream
from service.tasks.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Input:
    """One sequence's worth of a request, ready for the engine."""

    prompt: Sequence[int]
    source: Arrays
    source_length: int = 0


class WordTask:
    """A decoder engine with a tokenizer."""

    def __init__(
        self, package: Package, session: Session, *, rows: int, beams: int, new_tokens: int, room: int
    ) -> None:
        manifest = package.manifest
        assert manifest.decoding is not None
        assert manifest.preprocessing.text is not None
        self.defaults, self.settings = manifest.decoding, manifest.preprocessing.text
        self.tokenizer = Tokenizer.open(package.folder, self.settings)
        self.bounds = Bounds(new_tokens=new_tokens, beams=min(beams, rows))
        self.room = room
        self.engine = open_decoder(session, rows=rows, room=room)

    def submit(
        self,
        inputs: Sequence[Input],
        decoding: Decoding,
        *,
        deadline: float | None = None,
        listener: Callable[[int, int], None] | None = None,
    ) -> list[list[Future[Decoded]]]:
        """Futures for each input: one, or one for each sequence that is drawn. `listener` hears input and token."""
        ways = settle(decoding, self.defaults, self.bounds)
        jobs = []
        for index, each in enumerate(inputs):
            heard = None if listener is None else partial(listener, index)
            shared = (each.source, each.source_length, tuple(each.prompt))
            jobs.append([DecodeJob(*shared, way, heard, deadline=deadline) for way in ways])
        futures = [[job.future for job in each] for each in jobs]
        try:
            for each_job in chain.from_iterable(jobs):
                self.engine.submit(each_job)
        except BaseException:  # refused halfway: nobody will wait for the first half
            for future in chain.from_iterable(futures):
                future.cancel()
            raise
        return futures

    def pending(
        self, each: Input, decoding: Decoding, prepared: float, deadline: float | None, images: int
    ) -> Pending[Words]:
        (futures,) = self.submit([each], decoding, deadline=deadline)
        return Pending(futures, lambda answers: self.words(answers, prepared, images))

    def words(self, answers: list[Decoded], prepared: float, images: int = 0) -> Words:
        return Words(self.hypotheses(answers), *self.account(answers, prepared, images))

    def hypotheses(self, answers: list[Decoded]) -> tuple[Hypothesis, ...]:
        found = [one for answer in answers for one in answer.hypotheses]
        best_first = sorted(found, key=lambda one: -one.score)
        return tuple(Hypothesis(self.tokenizer.decode(one.tokens), one.score) for one in best_first)

    @staticmethod
    def account(answers: list[Decoded], prepared: float, images: int = 0) -> tuple[Usage, Timing]:
        read = sum(answer.input_tokens for answer in answers)
        written = sum(answer.output_tokens for answer in answers)
        queued = max((answer.queue_seconds for answer in answers), default=0.0)
        ran = max((answer.run_seconds for answer in answers), default=0.0)
        return Usage(read, written, images), Timing(1e3 * queued, 1e3 * prepared, 1e3 * ran)

    def stream(
        self, inputs: Sequence[Input], decoding: Decoding, deadline: float | None, layout: Layout | None
    ) -> WordStream:
        if decoding.best not in (None, 1):
            raise InputError(
                "decoding.best is for answers that come whole; a stream has one", field="decoding.best", limit=1
            )
        events: Stream[tuple[int, int | None]] = Stream()
        parts = self.submit(
            inputs, decoding, deadline=deadline, listener=lambda index, token: events.put((index, token))
        )
        futures = [future for (future,) in parts]
        left = set(range(len(futures)))

        def done(index: int, future: Future[Decoded]) -> None:
            left.discard(index)
            error = None if future.cancelled() else future.exception()
            events.put((index, None))
            if error is not None or not left:
                events.end(error)

        for index, future in enumerate(futures):
            future.add_done_callback(partial(done, index))
        if not futures:
            events.end()
        texts = [TextStream(self.tokenizer, self.settings) for _ in inputs]
        return WordStream(self, events, futures, texts, layout)


class Layout(Protocol):
    """Puts the first texts of several sequences together. What stands behind the last of them is put there only when
    that is complete."""

    def __call__(self, texts: Sequence[str], *, complete: bool) -> str: ...


def _side_by_side(texts: Sequence[str], *, complete: bool) -> str:  # noqa: ARG001
    return "".join(texts)


class WordStream:
    """Text as it falls: iterate over it, in a thread or a coroutine; then `result()`."""

    def __init__(
        self,
        task: WordTask,
        events: Stream[tuple[int, int | None]],
        futures: list[Future[Decoded]],
        texts: list[TextStream],
        layout: Layout | None,
    ) -> None:
        self._task, self._events, self._futures, self._streams = task, events, futures, texts
        self._layout = layout or _side_by_side
        self._texts = [""] * len(texts)
        self._complete = [False] * len(texts)
        self._given = ""

    def __iter__(self) -> Iterator[str]:
        try:
            for event in self._events:
                if piece := self._hear(*event):
                    yield piece
            if rest := self._rest():
                yield rest
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            async for event in self._events:
                if piece := self._hear(*event):
                    yield piece
            if rest := self._rest():
                yield rest
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Frees the rows; once all has come, nothing is left to free."""
        for future in self._futures:
            future.cancel()

    def result(self) -> Words:
        answers = [future.result() for future in self._futures]
        usage, timing = self._task.account(answers, 0.0)
        scores = [answer.hypotheses[0].score for answer in answers]
        score = sum(scores) / len(scores) if scores else 0.0
        return Words((Hypothesis(self._layout(self._texts, complete=True), score),), usage, timing)

    def _hear(self, index: int, token: int | None) -> str:
        if token is not None:
            self._texts[index] += self._streams[index].push(token)
        else:
            self._settle(index)
        return self._new()

    def _settle(self, index: int) -> None:
        """A finished sequence: what a beam found was not heard token by token."""
        future = self._futures[index]
        if not future.cancelled() and future.exception() is None:
            self._texts[index] = self._task.hypotheses([future.result()])[0].text
            self._complete[index] = True

    def _new(self) -> str:
        """Sequences before the first unfinished one, and what there is of that."""
        until = self._complete.index(False) + 1 if False in self._complete else len(self._texts)
        whole = self._layout(self._texts[:until], complete=all(self._complete[:until]))
        if not whole.startswith(self._given):
            return ""  # the layout between two sentences is not settled yet
        piece, self._given = whole[len(self._given) :], whole
        return piece

    def _rest(self) -> str:
        return self._new() if all(self._complete) else ""


def room_for(limit: int, prompt: int, new_tokens: int) -> int:
    return min(limit, padded_length(prompt + new_tokens))
