"""One page for whoever must decide: the verdict, the plots, the numbers."""

from __future__ import annotations

from pathlib import Path

from loadtest.paper import page, paragraph, plots, shown, table
from loadtest.scenarios.files import Outcome
from loadtest.scenarios.pictures import pictures
from loadtest.traffic.samples import latencies, tally, times


def write_html(outcome: Outcome, file: Path) -> None:
    about, verdict = outcome.about, outcome.verdict
    models = ", ".join(f"{each['name']} ({each['precision']}, {each['device']})" for each in about["models"])
    machine = about["machine_of_the_callers"]
    content = page(
        f"{about['scenario'].capitalize()}: {about['what']}",
        f"{models}; {about['when']}; callers on {machine['cores']} × {machine['cpu']}",
        f"{'Met' if verdict.holds else 'Missed'}. {verdict.sentence}",
        (
            *_doubts(outcome),
            plots(pictures(outcome)),
            _phases(outcome),
            _methods(outcome),
            _counts(outcome),
            _generator(outcome),
        ),
        good=verdict.holds,
    )
    file.write_text(content, encoding="utf-8")


def _doubts(outcome: Outcome) -> list[str]:
    return [paragraph("What speaks against these numbers", " ".join(doubts))] if (doubts := outcome.doubts()) else []


def _phases(outcome: Outcome) -> str:
    heads: tuple[str, ...] = ("phase", "offered/s", "answered/s", "sent", "answered", "refused", "left", "failed")
    heads += ("p50 ms", "p95 ms", "p99 ms", "first piece p95", "refusal p95", "objective")
    rows = [
        (
            *(each.phase.name, each.phase.rate, each.answered_per_second),
            *(each.tally.sent, each.tally.answered, each.tally.refused, each.tally.left, each.tally.failed),
            *(each.latency.p50, each.latency.p95, each.latency.p99, each.first_piece.p95, each.refusal.p95),
            "met" if each.within else "missed",
        )
        for each in outcome.record.done
    ]
    return table("Phases", heads, rows)


def _methods(outcome: Outcome) -> str:
    samples = outcome.record.samples
    rows = []
    for key in sorted({(each.model, each.method, each.way) for each in samples}):
        group = [each for each in samples if (each.model, each.method, each.way) == key]
        latency, first = latencies(group), times([each.first for each in group if each.first is not None])
        rows.append((*key, len(group), latency.p50, latency.p95, latency.p99, first.p50, first.p95))
    heads = ("model", "method", "way", "calls", "p50 ms", "p95 ms", "p99 ms", "first piece p50", "first piece p95")
    return table("Methods", heads, rows)


def _counts(outcome: Outcome) -> str:
    rows = [(each.model, _codes(each.called), _codes(each.counted), each.agrees) for each in outcome.record.agreement]
    return table("Counted by the callers and by the service", ("model", "callers", "service", "agree"), rows)


def _generator(outcome: Outcome) -> str:
    calls = [each for each in outcome.record.samples if each.is_call]
    late, totals = times([each.late for each in calls]), tally(calls)
    cores = max((each.generator_cores for each in outcome.record.done), default=0.0)
    sentence = (
        f"Sent {totals.sent:,} = {totals.answered:,} answered + {totals.refused:,} refused + {totals.left:,} left "
        f"+ {totals.failed:,} failed. The load generator used at most {cores:.2f} cores and sent "
        f"{shown(late.p99)} ms late (p99). {outcome.record.idle_rows:g} rows were in use after the end."
    )
    return paragraph("The load generator", sentence)


def _codes(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {code}" for code, count in counts.items()) or "none"
