"""Prints results to the terminal. Texts of users and models are never interpreted as markup."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwaiter.client.results import (
    Action,
    BaseResult,
    ClassificationResult,
    Description,
    DetectionResult,
    GeneratedImages,
    GeneratedText,
)

_BAR_WIDTH = 20
_MAX_LABELS = 20


def print_texts(console: Console, results: list[GeneratedText]) -> None:
    for result in results:
        if len(result.hypotheses) == 1:
            console.print(Text(result.text), soft_wrap=True)
            continue
        for hypothesis in result.hypotheses:
            console.print(Text.assemble((f"{hypothesis.score:8.3f}  ", "cyan"), hypothesis.text), soft_wrap=True)
    print_footer(console, results[0], score=results[0].score if len(results) == 1 else None)
    note_truncation(results)


def note_truncation(results: list[GeneratedText]) -> None:
    """Note on standard error, so that a pipe receives the texts alone, how many of them were cut off."""
    truncated = sum(hypothesis.finish_reason == "length" for result in results for hypothesis in result.hypotheses)
    total = sum(len(result.hypotheses) for result in results)
    if truncated:
        which = "The text was" if total == 1 else f"{truncated} of {total} texts were"
        note = f"{which} cut off at the token limit; --max-new-tokens raises it, up to the model's own."
        Console(stderr=True, highlight=False).print(Text(note, "dim"), soft_wrap=True)


def print_labels(console: Console, results: list[ClassificationResult]) -> None:
    for result in results:
        table = _table("label", ">score", "")
        for label in result.labels:
            table.add_row(Text(label.name), f"{label.score:.3f}", _bar(label.score))
        console.print(table)
    print_footer(console, results[0])


def print_boxes(console: Console, results: list[DetectionResult]) -> None:
    for result in results:
        table = _table("label", ">score", ">left", ">top", ">right", ">bottom")
        for box in result.boxes:
            corners = (f"{value:,.0f}" for value in (box.x_min, box.y_min, box.x_max, box.y_max))
            table.add_row(Text(box.name), f"{box.score:.3f}", *corners)
        console.print(table)
        objects = "1 object" if len(result.boxes) == 1 else f"{len(result.boxes)} objects"
        console.print(Text(f"{objects} in {result.width} x {result.height} pixels", "dim"))
    print_footer(console, results[0])


def print_actions(console: Console, results: list[Action]) -> None:
    for result in results:
        action = result.discrete if result.continuous is None else [round(value, 6) for value in result.continuous]
        console.print(Text(str(action)), soft_wrap=True)
        if result.scores:
            table = _table(">action", ">score", "")
            for index, score in enumerate(result.scores):
                table.add_row(str(index), f"{score:.3f}", _bar(score), style="bold" if index == action else "")
            console.print(table)
    print_footer(console, results[0])


def print_images(console: Console, result: GeneratedImages) -> None:
    count, size = len(result.images), sum(map(len, result.images))
    console.print(Text(f"{count:,} image{'' if count == 1 else 's'} generated, {size:,} bytes of PNG"))
    print_footer(console, result)


def print_description(console: Console, description: Description) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in _description_rows(description).items():
        if value:
            table.add_row(name, Text(value))
    console.print(Text.assemble((description.name, "bold"), f" version {description.version}"))
    console.print(table)


def print_footer(console: Console, result: BaseResult, *, score: float | None = None) -> None:
    """Print model, usage and timing, in a terminal only: a pipe receives the result alone."""
    if not console.is_terminal:
        return
    usage, timing = result.usage, result.timing
    parts = [f"{result.model.name} version {result.model.version}"]
    if score is not None:
        parts.append(f"score {score:.3f}")
    if usage.input_tokens or usage.output_tokens:
        parts.append(f"{usage.input_tokens:,} input tokens, {usage.output_tokens:,} output tokens")
    parts.append(f"{timing.queue_ms + timing.prepare_ms + timing.run_ms:,.0f} ms")
    console.print(Text(" · ".join(parts), "dim"))


def _description_rows(description: Description) -> dict[str, str]:
    languages, decoding = description.languages, description.decoding or {}
    labels = [*description.labels[:_MAX_LABELS], *(["…"] if len(description.labels) > _MAX_LABELS else [])]
    return {
        "task": f"{description.task}, {description.family}",
        "runs": f"{description.precision} on {description.device}",
        "limits": ", ".join(f"{name} {value:,}" for name, value in sorted(description.limits.items())),
        "languages": f"{', '.join(languages.source)} to {', '.join(languages.target)}" if languages else "",
        "labels": f"{len(description.labels):,}: {', '.join(labels)}" if labels else "",
        "states": f"{description.state_size} numbers" if description.state_size else "",
        "actions": f"{description.action_kind}, size {description.action_size}" if description.action_size else "",
        "decoding": ", ".join(f"{name} {value}" for name, value in decoding.items()),
        "licence": description.license,
        "source": description.source,
        "attribution": description.attribution,
    }


def _table(*names: str) -> Table:
    """Return an empty table; columns with the prefix `>` are right-aligned."""
    table = Table(box=SIMPLE_HEAD, header_style="bold")
    for name in names:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return table


def _bar(fraction: float) -> Text:
    return Text("█" * round(_BAR_WIDTH * fraction), "cyan")
