"""Engine runs of decoders whose states are replaced after each step, compared with PyTorch."""

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

from headwaiter.engine.buffers import DeviceMemory, Memory
from headwaiter.engine.decoder import Decoder
from headwaiter.engine.sequence import DecodeJob, DecodingParameters
from headwaiter.engine.session import Session
from headwaiter.package.manifest import Package, Preprocessing
from headwaiter_export.pipeline import ExportRequest, export
from headwaiter_export.zoo.checkpoint import Checkpoint
from headwaiter_export.zoo.registry import find_architecture
from tests.marks_kit import slow_except

VOCABULARY, MAX_LENGTH, EOS_TOKEN_ID = 20, 16, 2
ARCHITECTURES: dict[str, dict[str, int]] = {
    "bahdanau": {"size": 16, "source": 16},
    "seq2seq": {"size": 16, "source": 16, "layers": 2},
    "show-attend-tell": {"size": 16, "image": 16},
    "performer-lm": {"size": 16, "heads": 2, "features": 8, "hidden": 16, "layers": 1},
}


@dataclass(frozen=True)
class ExportedModel:
    """A package and the PyTorch model that it was exported from."""

    package: Package
    model: Any

    def source(self, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        if self.package.manifest.task == "translation":
            return {"tokens": rng.integers(3, VOCABULARY, rng.integers(1, 14))}
        if self.package.manifest.task == "captioning":
            return {"pixels": rng.standard_normal((1, 3, 16, 16)).astype(np.float32)}
        return {}

    def job(self, seed: int, *, prompt: tuple[int, ...] = (1,), max_new_tokens: int = 8, **options: Any) -> DecodeJob:
        source = self.source(seed)
        eos_token_ids = options.pop("eos_token_ids", frozenset({EOS_TOKEN_ID}))
        on_token = options.pop("on_token", None)
        length = len(source.get("tokens", ()))
        prompt = prompt if source else (*prompt, 3 + seed % 7)
        params = DecodingParameters(max_new_tokens=max_new_tokens, eos_token_ids=eos_token_ids, **options)
        return DecodeJob(source, length, prompt, params, on_token)

    def scores(self, job: DecodeJob, generated: tuple[int, ...]) -> torch.Tensor:
        """Log-probabilities of the next token from an unbatched, uncached run of the PyTorch model."""
        tokens = torch.tensor([[*job.prompt, *generated]])
        with torch.no_grad():
            if "tokens" in job.source:
                lengths = torch.tensor([job.source_length])
                encoded = self.model.encode(torch.from_numpy(job.source["tokens"])[None], lengths)
                logits = self.model(tokens, encoded, lengths)
            elif "pixels" in job.source:
                logits = self.model(tokens, self.model.encode(torch.from_numpy(job.source["pixels"])))
            else:
                logits = self.model(tokens)
        scores: torch.Tensor = logits[0, -1].log_softmax(-1)
        return scores

    def greedy(self, job: DecodeJob) -> tuple[int, ...]:
        generated: tuple[int, ...] = ()
        while len(generated) < job.params.max_new_tokens:
            token = int(self.scores(job, generated).argmax())
            if token in job.params.eos_token_ids:
                break
            generated = (*generated, token)
        return generated

    def beam(self, job: DecodeJob) -> list[tuple[tuple[int, ...], float]]:
        """The best hypotheses without end-of-sequence tokens, with scores divided by their length."""
        running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        for _ in range(job.params.max_new_tokens):
            extended = [
                ((*generated, token), score + float(token_score))
                for generated, score in running
                for token, token_score in enumerate(self.scores(job, generated))
            ]
            running = sorted(extended, key=lambda hypothesis: -hypothesis[1])[: job.params.num_beams]
        return [(generated, score / len(generated)) for generated, score in running]


@pytest.fixture(scope="module")
def exported_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ExportedModel]:
    folder = tmp_path_factory.mktemp("exported")

    @cache
    def export_model(kind: str) -> ExportedModel:
        model_class = find_architecture(kind).model
        torch.manual_seed(3)
        model = model_class(model_class.Sizes(vocabulary=VOCABULARY, room=MAX_LENGTH, **ARCHITECTURES[kind])).eval()
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.5)  # large enough for the states to matter
        Checkpoint(model, Preprocessing()).save(folder / kind)
        return ExportedModel(export(ExportRequest(str(folder / kind), name=kind, out=folder / "models")), model)

    return export_model


@contextmanager
def decoding(
    exported: ExportedModel, slots: int, jobs: list[DecodeJob], memory: Memory | None = None
) -> Iterator[None]:
    """Block the engine with a first job until all others are queued, so that the batches are deterministic."""
    all_queued = Event()
    first = exported.job(99, max_new_tokens=1, eos_token_ids=frozenset(), on_token=lambda _: all_queued.wait(60))
    decoder = Decoder(Session(exported.package, threads=1, memory=memory), slots=slots, max_length=MAX_LENGTH)
    decoder.start()
    try:
        for job in (first, *jobs):
            decoder.submit(job)
        all_queued.set()
        yield
    finally:
        all_queued.set()
        decoder.close(drain=False)


def decode(
    exported: ExportedModel, slots: int, jobs: list[DecodeJob], memory: Memory | None = None
) -> list[list[tuple[tuple[int, ...], float]]]:
    with decoding(exported, slots, jobs, memory):
        return [
            [(hypothesis.tokens, hypothesis.score) for hypothesis in job.future.result(60).hypotheses] for job in jobs
        ]


@pytest.mark.parametrize("kind", slow_except(ARCHITECTURES, "bahdanau"))
def test_decoder_more_jobs_than_slots_equals_torch(kind: str, exported_models: Callable[[str], ExportedModel]) -> None:
    """Twelve jobs of different lengths share three slots."""
    exported = exported_models(kind)
    jobs = [exported.job(seed, max_new_tokens=2 + 3 * seed % 10) for seed in range(12)]
    actual = decode(exported, 3, jobs)
    expected = [exported.greedy(job) for job in jobs]
    assert [tokens for ((tokens, _),) in actual] == expected
    assert len({tokens[:2] for tokens in expected}) > 1  # the sources affect the output


@pytest.mark.parametrize("kind", slow_except(ARCHITECTURES, "bahdanau"))
def test_decoder_beam_search_copies_states(kind: str, exported_models: Callable[[str], ExportedModel]) -> None:
    exported = exported_models(kind)
    jobs = [
        exported.job(seed, max_new_tokens=7, num_beams=3, num_return_sequences=3, eos_token_ids=frozenset())
        for seed in range(3)
    ]
    for job, actual in zip(jobs, decode(exported, 7, jobs), strict=True):
        expected = exported.beam(job)
        assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected]
        assert [score for _, score in actual] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("kind", slow_except(ARCHITECTURES, "bahdanau"))
def test_decoder_cancelled_job_does_not_affect_next(kind: str, exported_models: Callable[[str], ExportedModel]) -> None:
    exported = exported_models(kind)
    received: list[int] = []

    def cancel(token: int) -> None:
        received.append(token)
        if len(received) == 4:
            cancelled.future.cancel()

    cancelled = exported.job(0, max_new_tokens=12, eos_token_ids=frozenset(), on_token=cancel)
    following = exported.job(1, max_new_tokens=12, eos_token_ids=frozenset())
    with decoding(exported, 1, [cancelled, following]):
        actual = following.future.result(60).hypotheses[0].tokens
        with pytest.raises(CancelledError):
            cancelled.future.result(60)
    assert actual == exported.greedy(following)
    assert len(received) == 4


@pytest.mark.parametrize("kind", slow_except(["show-attend-tell", "performer-lm"]))
def test_decoder_prompts_of_different_lengths_equal_torch(
    kind: str, exported_models: Callable[[str], ExportedModel]
) -> None:
    """A sequence whose prompt has ended keeps its states while longer prompts are prefilled."""
    exported = exported_models(kind)
    prompts = [(1,), (1, 7, 4, 9, 5), (1, 8), (1, 5, 6)]
    jobs = [exported.job(seed, prompt=prompt, eos_token_ids=frozenset()) for seed, prompt in enumerate(prompts)]
    actual = decode(exported, 4, jobs)
    expected = [exported.greedy(job) for job in jobs]
    assert [tokens for ((tokens, _),) in actual] == expected
    shorter = exported.job(1, prompt=prompts[1][-1:], eos_token_ids=frozenset())
    assert exported.greedy(shorter) != expected[1]  # the prompt affects the output


@pytest.mark.parametrize("kind", slow_except(ARCHITECTURES, "bahdanau"))
def test_decoder_device_memory_equals_host_memory(kind: str, exported_models: Callable[[str], ExportedModel]) -> None:
    exported = exported_models(kind)
    actual, expected = (
        decode(
            exported,
            4,
            [exported.job(seed, max_new_tokens=2 + 3 * seed % 10, num_beams=1 + seed % 2) for seed in range(8)],
            memory,
        )
        for memory in (DeviceMemory("cpu"), None)
    )
    assert actual == expected
