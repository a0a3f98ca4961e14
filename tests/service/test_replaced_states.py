"""Decoders whose states are swapped whole after each step, in the engine, beside plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.pipeline import Order, export
from export.zoo.checkpoint import Checkpoint
from export.zoo.registry import find
from service.engine.decoder import Decoder
from service.engine.memory import DeviceMemory, Memory
from service.engine.sequence import Choosing, DecodeJob
from service.engine.session import Session
from service.package import Package, Preprocessing

VOCABULARY, ROOM, STOP = 20, 16, 2
KINDS: dict[str, dict[str, int]] = {
    "bahdanau": {"size": 16, "source": 16},
    "seq2seq": {"size": 16, "source": 16, "layers": 2},
    "show-attend-tell": {"size": 16, "image": 16},
    "performer-lm": {"size": 16, "heads": 2, "features": 8, "hidden": 16, "layers": 1},
}


@dataclass(frozen=True)
class Writer:
    """A package, and the model it was made of."""

    package: Package
    model: Any

    def source(self, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        if self.package.manifest.task == "translation":
            return {"tokens": rng.integers(3, VOCABULARY, rng.integers(1, 14))}
        if self.package.manifest.task == "captioning":
            return {"pixels": rng.standard_normal((1, 3, 16, 16)).astype(np.float32)}
        return {}

    def job(self, seed: int, *, prompt: tuple[int, ...] = (1,), new: int = 8, **how: Any) -> DecodeJob:
        source = self.source(seed)
        stop = how.pop("stop", frozenset({STOP}))
        listener = how.pop("listener", None)
        length = len(source.get("tokens", ()))
        prompt = prompt if source else (*prompt, 3 + seed % 7)
        return DecodeJob(source, length, prompt, Choosing(max_new_tokens=new, stop=stop, **how), listener)

    def scores(self, job: DecodeJob, written: tuple[int, ...]) -> torch.Tensor:
        """Log-probabilities of the next token: the model in torch, run whole and alone."""
        tokens = torch.tensor([[*job.prompt, *written]])
        with torch.no_grad():
            if "tokens" in job.source:
                lengths = torch.tensor([job.source_length])
                read = self.model.encode(torch.from_numpy(job.source["tokens"])[None], lengths)
                logits = self.model(tokens, read, lengths)
            elif "pixels" in job.source:
                logits = self.model(tokens, self.model.encode(torch.from_numpy(job.source["pixels"])))
            else:
                logits = self.model(tokens)
        found: torch.Tensor = logits[0, -1].log_softmax(-1)
        return found

    def greedy(self, job: DecodeJob) -> tuple[int, ...]:
        written: tuple[int, ...] = ()
        while len(written) < job.choosing.max_new_tokens:
            token = int(self.scores(job, written).argmax())
            if token in job.choosing.stop:
                break
            written = (*written, token)
        return written

    def beam(self, job: DecodeJob) -> list[tuple[tuple[int, ...], float]]:
        """The likeliest hypotheses where nothing ends early, with their scores divided by their length."""
        running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        for _ in range(job.choosing.max_new_tokens):
            longer = [
                ((*written, token), score + float(more))
                for written, score in running
                for token, more in enumerate(self.scores(job, written))
            ]
            running = sorted(longer, key=lambda one: -one[1])[: job.choosing.beams]
        return [(written, score / len(written)) for written, score in running]


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Writer]:
    folder = tmp_path_factory.mktemp("writers")

    @cache
    def make(kind: str) -> Writer:
        model_class = find(kind).model
        torch.manual_seed(3)
        model = model_class(model_class.Sizes(vocabulary=VOCABULARY, room=ROOM, **KINDS[kind])).eval()
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.5)  # strong enough for states to matter
        Checkpoint(model, Preprocessing()).save(folder / kind)
        return Writer(export(Order(str(folder / kind), name=kind, out=folder / "models")), model)

    return make


@contextmanager
def decoding(writer: Writer, rows: int, jobs: list[DecodeJob], memory: Memory | None = None) -> Iterator[None]:
    """A job before all others holds the engine until they are in line: which of them join together is settled."""
    all_there = Event()
    first = writer.job(99, new=1, stop=frozenset(), listener=lambda _: all_there.wait(60))
    decoder = Decoder(Session(writer.package, threads=1, memory=memory), rows=rows, room=ROOM)
    decoder.start()
    try:
        for job in (first, *jobs):
            decoder.submit(job)
        all_there.set()
        yield
    finally:
        all_there.set()
        decoder.close(drain=False)


def answers(
    writer: Writer, rows: int, jobs: list[DecodeJob], memory: Memory | None = None
) -> list[list[tuple[tuple[int, ...], float]]]:
    with decoding(writer, rows, jobs, memory):
        return [[(one.tokens, one.score) for one in job.future.result(60).hypotheses] for job in jobs]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_join_and_leave_in_mid_sentence(kind: str, writers: Callable[[str], Writer]) -> None:
    """Three rows for twelve texts that end at different times."""
    writer = writers(kind)
    jobs = [writer.job(seed, new=2 + 3 * seed % 10) for seed in range(12)]
    found = answers(writer, 3, jobs)
    expected = [writer.greedy(job) for job in jobs]
    assert [tokens for ((tokens, _),) in found] == expected
    assert len({tokens[:2] for tokens in expected}) > 1  # the sources matter


@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_takes_over_the_states_it_continues(kind: str, writers: Callable[[str], Writer]) -> None:
    writer = writers(kind)
    jobs = [writer.job(seed, new=7, beams=3, best=3, stop=frozenset()) for seed in range(3)]
    for job, found in zip(jobs, answers(writer, 7, jobs), strict=True):
        expected = writer.beam(job)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_row_leaves_no_trace(kind: str, writers: Callable[[str], Writer]) -> None:
    writer = writers(kind)
    heard: list[int] = []

    def cancel(token: int) -> None:
        heard.append(token)
        if len(heard) == 4:
            cancelled.future.cancel()

    cancelled = writer.job(0, new=12, stop=frozenset(), listener=cancel)
    following = writer.job(1, new=12, stop=frozenset())
    with decoding(writer, 1, [cancelled, following]):
        found = following.future.result(60).hypotheses[0].tokens
        with pytest.raises(CancelledError):
            cancelled.future.result(60)
    assert found == writer.greedy(following)
    assert len(heard) == 4


@pytest.mark.parametrize("kind", ["show-attend-tell", "performer-lm"])
def test_prompts_of_different_lengths_are_read_side_by_side(kind: str, writers: Callable[[str], Writer]) -> None:
    """One by one or at once; a row whose prompt has ended keeps its states while others read on."""
    writer = writers(kind)
    prompts = [(1,), (1, 7, 4, 9, 5), (1, 8), (1, 5, 6)]
    jobs = [writer.job(seed, prompt=prompt, stop=frozenset()) for seed, prompt in enumerate(prompts)]
    found = answers(writer, 4, jobs)
    expected = [writer.greedy(job) for job in jobs]
    assert [tokens for ((tokens, _),) in found] == expected
    shorter = writer.job(1, prompt=prompts[1][-1:], stop=frozenset())
    assert writer.greedy(shorter) != expected[1]  # the prompt matters


@pytest.mark.parametrize("kind", KINDS)
def test_sources_in_the_memory_of_a_device_and_states_beside_them(kind: str, writers: Callable[[str], Writer]) -> None:
    writer = writers(kind)
    found, expected = (
        answers(writer, 4, [writer.job(seed, new=2 + 3 * seed % 10, beams=1 + seed % 2) for seed in range(8)], memory)
        for memory in (DeviceMemory("cpu"), None)
    )
    assert found == expected
