"""Translation, beside CTranslate2 and transformers: the same weights, the same sentences, greedy and beams."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.chrf import chrf
from loadtest.contest import Taken
from loadtest.part import Options, Part, Stage
from loadtest.rows import Row, TranslationRow
from loadtest.sentences import sentences

SENTENCES = {1: 12, 8: 64, 64: 256}  # for so many at once
_WITH_BEAMS = {1: 8, 8: 16, 64: 128}  # whole batches, and no more than time allows
_GREEDY_RATES = {1: 2.6, 8: 9.5, 64: 22.0}  # sentences/s to expect of a contestant


class Translation(Part):
    name = "translation"
    what = "OPUS-MT zh-en, sentences put together from clauses of our own (loadtest/sentences.py)"
    module = "loadtest.translators"
    contestants = (
        "headwaiter fp32",
        "headwaiter int8",
        "ctranslate2 fp32",
        "ctranslate2 int8",
        "transformers fp32",
    )
    slow = ("transformers fp32",)
    row = TranslationRow

    def stages(self, options: Options) -> list[Stage]:
        return [_stage(beams, at_once) for beams in options.beams for at_once in options.at_once]

    def rows(self, stage: Stage, taken: Sequence[Taken], when: str) -> list[Row]:
        task = stage.task
        answers = {each.contestant: each.answers[-1] for each in taken}
        return [
            TranslationRow(
                contestant=each.contestant,
                settings=each.settings,
                rounds=len(each.seconds),
                spread=each.spread,
                when=when,
                beams=task["beams"],
                at_once=task["at_once"],
                sentences=len(task["texts"]),
                sentences_per_second=len(task["texts"]) / each.median,
                chrf_own_fp32=_likeness(answers, each.contestant, f"{each.contestant.split()[0]} fp32"),
                chrf_ctranslate2=_likeness(answers, each.contestant, "ctranslate2 fp32"),
            )
            for each in taken
        ]


def _stage(beams: int, at_once: int) -> Stage:
    count = (SENTENCES if beams == 1 else _WITH_BEAMS)[at_once]
    search = f"{beams} beams" if beams > 1 else "greedy"
    seconds = count / (_GREEDY_RATES[at_once] / beams**0.8)
    task = {"texts": sentences(count), "beams": beams, "at_once": at_once}
    return Stage(f"{search}, {at_once} at once", f"{count} sentences", task, seconds, 2 * seconds)


def _likeness(answers: dict[str, list[str]], contestant: str, reference: str) -> float | None:
    return chrf(answers[contestant], answers[reference]) if reference in answers else None
