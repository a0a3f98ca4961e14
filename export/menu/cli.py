"""`headwaiter menu` and what hangs on it. Torch is loaded when it is needed, not before."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from export.console import console, fail, one_sentence, progress, step, wrong
from export.errors import ExportError, SourceError
from export.menu import Dish, hub_models, menu
from export.menu.results import headline, note, table
from export.report import exported
from service.package import Precision

CHECKPOINTS = Path("checkpoints/menu")
_PRECISIONS = get_args(Precision)
Out = Annotated[Path, typer.Option(help="Where packages are kept.")]
_MODELS = Path("models")


def add_commands(app: typer.Typer) -> None:
    from export.menu.play import play_command

    shown = typer.Typer(help="The models that come with the house: list them, export them, make them again.")
    shown.callback(invoke_without_command=True)(list_command)
    shown.command("export")(export_command)
    shown.command("train")(train_command)
    shown.command("evaluate")(evaluate_command)
    app.add_typer(shown, name="menu")
    app.command("play")(play_command)


def list_command(context: typer.Context, out: Out = _MODELS) -> None:
    """List the models that come with the house: how good they are, and which of them are exported already.

    Examples:

      headwaiter menu

      headwaiter export fashion-vit --precision int8
    """
    if context.invoked_subcommand is not None:
        return
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("model", "task", "licence", "weights"):
        table.add_column(name, no_wrap=True)
    table.add_column("exported")
    for dish in menu().values():
        table.add_row(dish.name, dish.task, dish.license, _weights(dish), _exported(dish, out))
    console.print(table)
    for dish in menu().values():
        console.print(f"[bold]{dish.name}[/]  {dish.about}")
        console.print(f"  must reach {dish.bar}; reaches {headline(dish)}")
    console.print("\n[dim]headwaiter export NAME makes a package, headwaiter menu export all that are missing.[/]")
    console.print("\nneeds a hub (not tried here; weights must be safetensors):")
    for each in hub_models():
        console.print(f"  {each.command}   [dim]{each.about}[/]", soft_wrap=True)


def _exported(dish: Dish, out: Path) -> str:
    made = exported(out / dish.name)
    told = ", ".join(f"{version}/{each}" for version, found in made.items() for each in found)
    return f"older: {told}" if made and _is_missing(dish, made) else told or "no"


def _is_missing(dish: Dish, made: Iterable[str]) -> bool:
    """Whether none of these versions has its weights, or newer ones."""
    return int(dish.version) > max(map(int, made), default=0)


def _weights(dish: Dish) -> str:
    """How much is in the repository, or has to be fetched."""
    if dish.parcel is not None:
        return f"{dish.parcel.megabytes} MB, fetched"
    return f"{sum(file.stat().st_size for file in dish.weights.glob('*')) / 1e6:.1f} MB, here"


def export_command(out: Out = _MODELS) -> None:
    """Export every model of the menu that is not yet exported, or whose weights are newer, as it is served at first.

    What cannot be made is told and left out; the next time goes on from there.

    Examples:

      headwaiter menu export
    """
    missing = [dish for dish in menu().values() if _is_missing(dish, exported(out / dish.name))]
    failed = [dish.name for dish in missing if not _made(dish, out)]
    if failed:
        wrong(f"{', '.join(failed)} could not be exported; `headwaiter menu export` tries again.")
    if len(failed) == len(menu()):
        fail("There is nothing to serve.", 1)


def _made(dish: Dish, out: Path) -> bool:
    console.print(f"[bold]{dish.name}[/] {dish.precision} [dim]{dish.license}: {dish.attribution}[/]", soft_wrap=True)
    try:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from export.pipeline import Order, export

        export(Order(dish.name, precision=dish.precision, out=out), step)
    except ModuleNotFoundError as error:
        fail(f"Exporting needs {error.name}, which is not installed: pip install 'headwaiter[export,cpu]'.", 2)
    except (SourceError, ExportError) as error:
        wrong(str(error))
        return False
    except OSError as error:
        wrong(f"{dish.name} could not be written to {out}: {error.strerror}.")
        return False
    return True


def train_command(
    name: Annotated[str, typer.Argument(help="A model of the menu whose weights are made here.")],
    out: Annotated[Path | None, typer.Option(help="Where the checkpoint goes; else checkpoints/menu/NAME.")] = None,
    steps: Annotated[int | None, typer.Option(help="Else as many as the recipe says.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same training.", min=0)] = 0,
) -> None:
    """Make a model of the menu again: fetch its data, train, export, measure.

    Stopped and started again, it goes on from the last checkpoint.

    Examples:

      headwaiter menu train breakout-dt
    """
    with one_sentence("Training"):
        from export.menu.evaluate import measured
        from export.menu.house import lesson, taught
        from export.zoo.training import train

        system, folder = taught(name), out or CHECKPOINTS / name
        with progress(name, steps or system.recipe.steps) as show:
            train(
                system,
                folder,
                seed=seed,
                steps=steps,
                watch=lambda now: show(now.done, f"{name}, loss {now.loss:.3f}"),
                begin=lesson(name).begin,
            )
        console.print(table({"fp32": measured(name, str(folder), "fp32")}))
    console.print(f"[dim]The checkpoint is in {folder}: headwaiter export {folder} --name {name}[/]")


def evaluate_command(
    names: Annotated[list[str] | None, typer.Argument(help="Else all whose weights are made here.")] = None,
    most: Annotated[int | None, typer.Option(help="On no more examples than that; notes nothing.", min=1)] = None,
) -> None:
    """Measure models of the menu on held-out data, as they are served, and note it on their cards.

    Examples:

      headwaiter menu evaluate emoji-detr

      headwaiter menu evaluate --most 100
    """
    with one_sentence("Measuring"):
        from export.menu.evaluate import evaluate
        from export.menu.measures import MEASURES

        for name in names or MEASURES:
            if name not in MEASURES:
                raise SourceError(f"{name} is not measured here; {', '.join(MEASURES)} are.")
            with step(name):
                found = evaluate(name, most)
            console.print(table(found))
            if most is None:
                note(name, found)
