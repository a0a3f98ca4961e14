"""Answers for a terminal. Texts of users and models are never read as markup."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.client.results import Action, Answer, Classified, Description, Detected, GeneratedImages, Words

_BAR_WIDTH = 20
_MOST_LABELS = 20


def words(console: Console, answers: list[Words]) -> None:
    for answer in answers:
        if len(answer.hypotheses) == 1:
            console.print(Text(answer.text), soft_wrap=True)
            continue
        for hypothesis in answer.hypotheses:
            console.print(Text.assemble((f"{hypothesis.score:8.3f}  ", "cyan"), hypothesis.text), soft_wrap=True)
    footer(console, answers[0], score=answers[0].score if len(answers) == 1 else None)


def classified(console: Console, answers: list[Classified]) -> None:
    for answer in answers:
        table = _table("label", ">score", "")
        for label in answer.labels:
            table.add_row(Text(label.name), f"{label.score:.3f}", _bar(label.score))
        console.print(table)
    footer(console, answers[0])


def detected(console: Console, answers: list[Detected]) -> None:
    for answer in answers:
        table = _table("what", ">score", ">left", ">top", ">right", ">bottom")
        for box in answer.boxes:
            corners = (f"{value:,.0f}" for value in (box.x_min, box.y_min, box.x_max, box.y_max))
            table.add_row(Text(box.name), f"{box.score:.3f}", *corners)
        console.print(table)
        console.print(Text(f"{len(answer.boxes)} found in {answer.width} x {answer.height} pixels", "dim"))
    footer(console, answers[0])


def actions(console: Console, answers: list[Action]) -> None:
    for answer in answers:
        chosen = answer.discrete if answer.continuous is None else [round(value, 6) for value in answer.continuous]
        console.print(Text(str(chosen)), soft_wrap=True)
        if answer.scores:
            table = _table(">action", ">score", "")
            for index, score in enumerate(answer.scores):
                table.add_row(str(index), f"{score:.3f}", _bar(score), style="bold" if index == chosen else "")
            console.print(table)
    footer(console, answers[0])


def images(console: Console, made: GeneratedImages) -> None:
    count = len(made.images)
    console.print(Text(f"{count:,} image{'' if count == 1 else 's'} made, {sum(map(len, made.images)):,} bytes of PNG"))
    footer(console, made)


def description(console: Console, found: Description) -> None:
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    for name, value in _facts(found).items():
        if value:
            facts.add_row(name, Text(value))
    console.print(Text.assemble((found.name, "bold"), f" version {found.version}"))
    console.print(facts)


def footer(console: Console, answer: Answer, *, score: float | None = None) -> None:
    """For whoever watches; a pipe gets the answer alone."""
    if not console.is_terminal:
        return
    usage, timing = answer.usage, answer.timing
    parts = [f"{answer.model.name} version {answer.model.version}"]
    if score is not None:
        parts.append(f"score {score:.3f}")
    if usage.input_tokens or usage.output_tokens:
        parts.append(f"{usage.input_tokens:,} tokens read, {usage.output_tokens:,} written")
    parts.append(f"{timing.queue_ms + timing.prepare_ms + timing.run_ms:,.0f} ms")
    console.print(Text(" · ".join(parts), "dim"))


def _facts(found: Description) -> dict[str, str]:
    languages, decoding = found.languages, found.decoding or {}
    labels = [*found.labels[:_MOST_LABELS], *(["…"] if len(found.labels) > _MOST_LABELS else [])]
    return {
        "task": f"{found.task}, {found.family}",
        "runs": f"{found.precision} on {found.device}",
        "limits": ", ".join(f"{name} {value:,}" for name, value in sorted(found.limits.items())),
        "languages": f"{', '.join(languages.source)} to {', '.join(languages.target)}" if languages else "",
        "labels": f"{len(found.labels):,}: {', '.join(labels)}" if labels else "",
        "states": f"of {found.state_size} numbers" if found.state_size else "",
        "actions": f"{found.action_kind}, of {found.action_size}" if found.action_size else "",
        "decoding": ", ".join(f"{name} {value}" for name, value in decoding.items()),
        "licence": found.license,
        "source": found.source,
        "attribution": found.attribution,
    }


def _table(*names: str) -> Table:
    """A name with `>` before it is of numbers."""
    table = Table(box=SIMPLE_HEAD, header_style="bold")
    for name in names:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return table


def _bar(share: float) -> Text:
    return Text("█" * round(_BAR_WIDTH * share), "cyan")
