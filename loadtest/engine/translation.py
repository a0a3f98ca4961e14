"""Translation benchmark: the engine compared with CTranslate2 and transformers on the same weights and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.benchmark_process import BackendTimings
from loadtest.engine.benchmark_part import BenchmarkOptions, BenchmarkPart, Workload
from loadtest.engine.chrf import chrf
from loadtest.engine.measurements import Measurement, TranslationMeasurement
from loadtest.sentences import sentences

SENTENCES = {1: 12, 8: 64, 64: 256}  # by concurrency
_BEAM_SENTENCES = {1: 8, 8: 16, 64: 128}  # fewer, because beam search is slower; whole batches
_GREEDY_RATES = {1: 2.6, 8: 9.5, 64: 22.0}  # expected sentences/s, used for progress


class Translation(BenchmarkPart):
    name = "translation"
    description = "OPUS-MT zh-en, sentences assembled from clauses (loadtest/sentences.py)"
    module = "loadtest.engine.translation_workers"
    backends = (
        "headwaiter fp32",
        "headwaiter int8",
        "ctranslate2 fp32",
        "ctranslate2 int8",
        "transformers fp32",
    )
    slow = ("transformers fp32",)
    row = TranslationMeasurement

    def workloads(self, options: BenchmarkOptions) -> list[Workload]:
        return [_workload(beams, concurrency) for beams in options.beams for concurrency in options.concurrency]

    def rows(self, workload: Workload, timings: Sequence[BackendTimings], when: str) -> list[Measurement]:
        task = workload.task
        answers = {timing.backend: timing.answers[-1] for timing in timings}
        return [
            TranslationMeasurement(
                backend=timing.backend,
                settings=timing.settings,
                rounds=len(timing.seconds),
                spread=timing.spread,
                when=when,
                beams=task["beams"],
                concurrency=task["concurrency"],
                sentences=len(task["texts"]),
                sentences_per_second=len(task["texts"]) / timing.median,
                chrf_vs_own_fp32=_chrf_against(answers, timing.backend, f"{timing.backend.split()[0]} fp32"),
                chrf_vs_ctranslate2_fp32=_chrf_against(answers, timing.backend, "ctranslate2 fp32"),
            )
            for timing in timings
        ]


def _workload(beams: int, concurrency: int) -> Workload:
    count = (SENTENCES if beams == 1 else _BEAM_SENTENCES)[concurrency]
    search = f"{beams} beams" if beams > 1 else "greedy"
    seconds = count / (_GREEDY_RATES[concurrency] / beams**0.8)
    task = {"texts": sentences(count), "beams": beams, "concurrency": concurrency}
    return Workload(f"{search}, concurrency {concurrency}", f"{count} sentences", task, seconds, 2 * seconds)


def _chrf_against(answers: dict[str, list[str]], backend: str, reference: str) -> float | None:
    return chrf(answers[backend], answers[reference]) if reference in answers else None
