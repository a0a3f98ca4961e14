"""HTML report of a scenario: verdict, plots and tables."""

from __future__ import annotations

from pathlib import Path

from loadtest.html_report import format_value, paragraph, plots, render_page, table
from loadtest.scenarios.plots import scenario_plots
from loadtest.scenarios.result_files import ScenarioResult
from loadtest.traffic.samples import call_counts, first_chunk_latencies, latencies, summarise_latencies


def write_html(scenario_result: ScenarioResult, file: Path) -> None:
    metadata, verdict = scenario_result.metadata, scenario_result.verdict
    models = ", ".join(f"{model['name']} ({model['precision']}, {model['device']})" for model in metadata["models"])
    machine = metadata["client_machine"]
    content = render_page(
        f"{metadata['scenario'].capitalize()}: {metadata['what']}",
        f"{models}; {metadata['when']}; clients on {machine['cores']} × {machine['cpu']}",
        f"{'Met' if verdict.holds else 'Missed'}. {verdict.summary}",
        (
            *_warnings(scenario_result),
            plots(scenario_plots(scenario_result)),
            _phases(scenario_result),
            _methods(scenario_result),
            _counts(scenario_result),
            _generator(scenario_result),
        ),
        good=verdict.holds,
    )
    file.write_text(content, encoding="utf-8")


def _warnings(scenario_result: ScenarioResult) -> list[str]:
    return [paragraph("Warnings", " ".join(warnings))] if (warnings := scenario_result.warnings()) else []


def _phases(scenario_result: ScenarioResult) -> str:
    heads: tuple[str, ...] = ("phase", "offered/s", "answered/s", "sent", "answered", "rejected", "cancelled", "failed")
    heads += ("p50 ms", "p95 ms", "p99 ms", "first chunk p95", "rejection p95", "objective")
    rows = [
        (
            *(result.phase.name, result.phase.rate, result.answered_per_second),
            *(
                result.call_counts.sent,
                result.call_counts.answered,
                result.call_counts.rejected,
                result.call_counts.cancelled,
                result.call_counts.failed,
            ),
            *(result.latency.p50, result.latency.p95, result.latency.p99, result.first_chunk.p95, result.rejection.p95),
            "met" if result.objective_met else "missed",
        )
        for result in scenario_result.record.phase_results
    ]
    return table("Phases", heads, rows)


def _methods(scenario_result: ScenarioResult) -> str:
    samples = scenario_result.record.samples
    rows = []
    for key in sorted({(sample.model, sample.method, sample.transport) for sample in samples}):
        group = [sample for sample in samples if (sample.model, sample.method, sample.transport) == key]
        latency, first_chunk = latencies(group), first_chunk_latencies(group)
        rows.append((*key, len(group), latency.p50, latency.p95, latency.p99, first_chunk.p50, first_chunk.p95))
    heads = (
        "model",
        "method",
        "transport",
        "requests",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "first chunk p50",
        "first chunk p95",
    )
    return table("Methods", heads, rows)


def _counts(scenario_result: ScenarioResult) -> str:
    rows = [
        (comparison.model, _codes(comparison.client_counts), _codes(comparison.server_counts), comparison.agrees)
        for comparison in scenario_result.record.count_comparison
    ]
    return table("Requests counted by the clients and by the service", ("model", "clients", "service", "agree"), rows)


def _generator(scenario_result: ScenarioResult) -> str:
    calls = [item for item in scenario_result.record.samples if item.is_call]
    send_delay, totals = summarise_latencies([item.send_delay for item in calls]), call_counts(calls)
    cores = max((item.generator_cores for item in scenario_result.record.phase_results), default=0.0)
    summary = (
        f"Sent {totals.sent:,} = {totals.answered:,} answered + {totals.rejected:,} rejected + "
        f"{totals.cancelled:,} cancelled + {totals.failed:,} failed. The load generator used at most "
        f"{cores:.2f} cores; its send delay was {format_value(send_delay.p99)} ms (p99). "
        f"{scenario_result.record.leftover_slots:g} slots were in use after the end."
    )
    return paragraph("Load generator", summary)


def _codes(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {code}" for code, count in counts.items()) or "none"
