"""The `headwaiter zoo` and `headwaiter zoo train` commands. Torch is imported lazily, inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from headwaiter.console import CommandConsole
from headwaiter_export.console import exit_on_error

if TYPE_CHECKING:
    from headwaiter_export.zoo.training import Progress as TrainingProgress

CHECKPOINTS = Path("checkpoints/zoo")


def add_commands(app: typer.Typer) -> None:
    zoo = typer.Typer(help="List and train the reference architectures.")
    zoo.callback(invoke_without_command=True)(list_command)
    zoo.command("train")(train_command)
    app.add_typer(zoo, name="zoo")


def list_command(context: typer.Context) -> None:
    """List the architectures of the zoo with their task, parameter count and paper.

    Examples:

      headwaiter zoo

      headwaiter zoo train vit
    """
    if context.invoked_subcommand is not None:
        return
    from headwaiter_export.zoo.registry import GROUPS, architectures

    console = CommandConsole()
    table = Table("architecture", "task", box=SIMPLE_HEAD, header_style="bold", expand=True)
    table.add_column("parameters", justify="right")
    table.add_column("paper", ratio=1, no_wrap=True)
    for group in GROUPS:
        table.add_section()
        for entry in architectures().values():
            if entry.group == group:
                table.add_row(entry.name, entry.task, f"{entry.parameters():,}", entry.paper)
    console.print(table)
    console.print(
        "[dim]Train with `headwaiter zoo train NAME`; export with `headwaiter export checkpoints/zoo/NAME`.[/]"
    )


def train_command(
    name: Annotated[str, typer.Argument(help="Architecture, as listed by `headwaiter zoo`.")],
    data: Annotated[
        str | None, typer.Option(help="Dataset, as NAME or NAME:option=value (default: from the recipe).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Checkpoint directory (default: checkpoints/zoo/NAME).")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps (default: from the recipe).", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Random seed; a run is reproducible from its seed.", min=0)] = 0,
) -> None:
    """Train an architecture on its dataset, export it and evaluate the package on held-out data.

    An interrupted run resumes from its last checkpoint.

    Examples:

      headwaiter zoo train vit

      headwaiter zoo train transformer --data sorting --out checkpoints/sorter

      headwaiter zoo train bert --data listops:length=16 --steps 500 --out checkpoints/short
    """
    console = CommandConsole()
    with exit_on_error("Training"):
        from headwaiter_export.zoo.data.selection import with_dataset
        from headwaiter_export.zoo.registry import find_architecture
        from headwaiter_export.zoo.training_result import train_and_evaluate

        architecture = find_architecture(name) if data is None else with_dataset(find_architecture(name), data)
        metric = architecture.recipe.data.metric

        def describe(current: TrainingProgress) -> str:
            return f"{name}, loss {current.loss:.3f}" + (
                f", {metric} {current.metric:.3f}" if current.metric is not None else ""
            )

        folder = out or CHECKPOINTS / name
        with console.progress(name, steps or architecture.recipe.steps) as advance:
            training_result = train_and_evaluate(
                architecture,
                folder,
                seed=seed,
                steps=steps,
                on_progress=lambda current: advance(current.done, describe(current)),
            )
    target_note = (
        ""
        if training_result.target is None
        else f" (target {training_result.target:g}: {'' if training_result.target_reached else 'not '}reached)"
    )
    console.print(
        f"{training_result.metric} {training_result.value:.3f} on held-out data, through the exported package"
        f"{target_note}"
    )
    console.print(f"{training_result.parameters:,} parameters, {training_result.seconds:.0f} s; checkpoint: {folder}")
    console.print(f"[dim]headwaiter export {folder} --name {name}[/]")
