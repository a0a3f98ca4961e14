"""`headwaiter zoo` and `headwaiter zoo train`. Torch is loaded when it is needed, not before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from export.console import console, one_sentence, progress

if TYPE_CHECKING:
    from export.zoo.training import Progress as Learned

CHECKPOINTS = Path("checkpoints/zoo")


def add_commands(app: typer.Typer) -> None:
    zoo = typer.Typer(help="The architectures of the attention story: list them, train them.")
    zoo.callback(invoke_without_command=True)(list_command)
    zoo.command("train")(train_command)
    app.add_typer(zoo, name="zoo")


def list_command(context: typer.Context) -> None:
    """List the architectures of the zoo: what each is for and where it comes from.

    Examples:

      headwaiter zoo

      headwaiter zoo train vit
    """
    if context.invoked_subcommand is not None:
        return
    from export.zoo.registry import GROUPS, systems

    table = Table("system", "served as", box=SIMPLE_HEAD, header_style="bold", expand=True)
    table.add_column("parameters", justify="right")
    table.add_column("paper", ratio=1, no_wrap=True)
    for group in GROUPS:
        table.add_section()
        for each in (each for each in systems().values() if each.group == group):
            table.add_row(each.name, each.task, f"{each.parameters():,}", each.paper)
    console.print(table)
    console.print("[dim]headwaiter zoo train NAME trains one; headwaiter export checkpoints/zoo/NAME packs it.[/]")


def train_command(
    name: Annotated[str, typer.Argument(help="One of `headwaiter zoo`.")],
    data: Annotated[
        str | None, typer.Option(help="What to learn from, with options or without; else what the recipe says.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the checkpoint goes; else checkpoints/zoo/NAME.")] = None,
    steps: Annotated[int | None, typer.Option(help="Else as many as the recipe says.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same training.", min=0)] = 0,
) -> None:
    """Train a system on its small data, export it, and measure what it learned on data that it has not seen.

    Stopped and started again, it goes on from the last checkpoint.

    Examples:

      headwaiter zoo train vit

      headwaiter zoo train transformer --data sorting --out checkpoints/sorter

      headwaiter zoo train bert --data listops:length=16 --steps 500 --out checkpoints/short
    """
    with one_sentence("Training"):
        from export.zoo.data.choice import learning_from
        from export.zoo.outcome import achieve
        from export.zoo.registry import find

        system = find(name) if data is None else learning_from(find(name), data)
        metric = system.recipe.data.metric

        def describe(now: Learned) -> str:
            return f"{name}, loss {now.loss:.3f}" + (f", {metric} {now.metric:.3f}" if now.metric is not None else "")

        folder = out or CHECKPOINTS / name
        with progress(name, steps or system.recipe.steps) as show:
            outcome = achieve(
                system,
                folder,
                seed=seed,
                steps=steps,
                watch=lambda now: show(now.done, describe(now)),
            )
    verdict = (
        "" if outcome.bar is None else f" (the bar is {outcome.bar:g}: {'' if outcome.reached else 'not '}reached)"
    )
    console.print(f"{outcome.metric} {outcome.value:.3f} on held-out data, through the exported package{verdict}")
    console.print(f"{outcome.parameters:,} parameters, {outcome.seconds:.0f} s; the checkpoint is in {folder}")
    console.print(f"[dim]headwaiter export {folder} --name {name}[/]")
