"""The `headwaiter menu` commands. Torch is imported lazily, inside the commands."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from headwaiter.console import CommandConsole
from headwaiter.package.manifest import Precision
from headwaiter_export.console import exit_on_error
from headwaiter_export.errors import ExportError, SourceError
from headwaiter_export.menu import MenuEntry, hub_models, menu
from headwaiter_export.menu.results import save_metrics, table, target_summary
from headwaiter_export.report import exported_precisions

CHECKPOINTS = Path("checkpoints/menu")
_PRECISIONS = get_args(Precision)
Out = Annotated[Path, typer.Option(help="Package directory.")]
_MODELS = Path("models")


def add_commands(app: typer.Typer) -> None:
    from headwaiter_export.menu.play import play_command

    menu_app = typer.Typer(help="List, export, train and evaluate the built-in models.")
    menu_app.callback(invoke_without_command=True)(list_command)
    menu_app.command("export")(export_command)
    menu_app.command("train")(train_command)
    menu_app.command("evaluate")(evaluate_command)
    app.add_typer(menu_app, name="menu")
    app.command("play")(play_command)


def list_command(context: typer.Context, out: Out = _MODELS) -> None:
    """List the built-in models with their target, measured metrics and exported packages.

    Examples:

      headwaiter menu

      headwaiter export fashion-vit --precision int8
    """
    if context.invoked_subcommand is not None:
        return
    console = CommandConsole()
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("model", "task", "licence", "weights"):
        table.add_column(name, no_wrap=True)
    table.add_column("exported")
    for entry in menu().values():
        table.add_row(entry.name, entry.task, entry.license, _weights(entry), _exported(entry, out))
    console.print(table)
    for entry in menu().values():
        console.print(f"[bold]{entry.name}[/]  {entry.description}")
        console.print(f"  target: {entry.target}; measured: {target_summary(entry)}")
    console.print("\n[dim]Export one with `headwaiter export NAME`, all missing ones with `headwaiter menu export`.[/]")
    console.print("\nRequires access to a hub (untested; weights must be safetensors):")
    for model in hub_models():
        console.print(f"  {model.command}   [dim]{model.description}[/]", soft_wrap=True)


def _exported(entry: MenuEntry, out: Path) -> str:
    exported = exported_precisions(out / entry.name)
    summary = ", ".join(f"{version}/{name}" for version, precisions in exported.items() for name in precisions)
    return f"older: {summary}" if exported and _is_missing(entry, exported) else summary or "no"


def _is_missing(entry: MenuEntry, versions: Iterable[str]) -> bool:
    """Whether no exported version has the current weights or newer ones."""
    return int(entry.version) > max(map(int, versions), default=0)


def _weights(entry: MenuEntry) -> str:
    """Size and location of the weights."""
    if entry.artifact is not None:
        return f"{entry.artifact.megabytes} MB, download"
    return f"{sum(file.stat().st_size for file in entry.weights.glob('*')) / 1e6:.1f} MB, included"


def export_command(out: Out = _MODELS) -> None:
    """Export every built-in model that is missing or outdated, in its default precision.

    Models that cannot be exported are reported and skipped; run the command again to retry them.

    Examples:

      headwaiter menu export
    """
    console = CommandConsole()
    missing = [entry for entry in menu().values() if _is_missing(entry, exported_precisions(out / entry.name))]
    failed = [entry.name for entry in missing if not _export_entry(console, entry, out)]
    if failed:
        console.print_error(f"Could not export {', '.join(failed)}; run `headwaiter menu export` to retry.")
    if len(failed) == len(menu()):
        console.fail("No model could be exported.", 1)


def _export_entry(console: CommandConsole, entry: MenuEntry, out: Path) -> bool:
    console.print(
        f"[bold]{entry.name}[/] {entry.precision} [dim]{entry.license}: {entry.attribution}[/]", soft_wrap=True
    )
    try:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from headwaiter_export.pipeline import ExportRequest, export

        export(ExportRequest(entry.name, precision=entry.precision, out=out), console.step)
    except ModuleNotFoundError as error:
        console.fail(f"Exporting requires {error.name}; install it with pip install 'headwaiter[export,cpu]'.", 2)
    except (SourceError, ExportError) as error:
        console.print_error(str(error))
        return False
    except OSError as error:
        console.print_error(f"Could not write {entry.name} to {out}: {error.strerror}.")
        return False
    return True


def train_command(
    name: Annotated[str, typer.Argument(help="Built-in model with a training recipe.")],
    out: Annotated[Path | None, typer.Option(help="Checkpoint directory (default: checkpoints/menu/NAME).")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps (default: from the recipe).", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Random seed; a run is reproducible from its seed.", min=0)] = 0,
) -> None:
    """Train a built-in model from scratch: download its data, train, export and evaluate.

    An interrupted run resumes from its last checkpoint.

    Examples:

      headwaiter menu train breakout-dt
    """
    console = CommandConsole()
    with exit_on_error("Training"):
        from headwaiter_export.menu.evaluate import evaluate_source
        from headwaiter_export.menu.recipes import trainable_architecture, training_recipe
        from headwaiter_export.zoo.training import train

        architecture, folder = trainable_architecture(name), out or CHECKPOINTS / name
        with console.progress(name, steps or architecture.recipe.steps) as advance:
            train(
                architecture,
                folder,
                seed=seed,
                steps=steps,
                on_progress=lambda current: advance(current.done, f"{name}, loss {current.loss:.3f}"),
                initialize=training_recipe(name).initialize,
            )
        console.print(table({"fp32": evaluate_source(name, str(folder), "fp32")}))
    console.print(f"[dim]Checkpoint: {folder}. Export it with `headwaiter export {folder} --name {name}`.[/]")


def evaluate_command(
    names: Annotated[list[str] | None, typer.Argument(help="Built-in models (default: all with an evaluator).")] = None,
    max_examples: Annotated[
        int | None, typer.Option(help="Limit the number of examples; results are then not saved.", min=1)
    ] = None,
) -> None:
    """Evaluate exported packages of built-in models on held-out data and save the metrics to their cards.

    Examples:

      headwaiter menu evaluate emoji-detr

      headwaiter menu evaluate --max-examples 100
    """
    console = CommandConsole()
    with exit_on_error("Evaluation"):
        from headwaiter_export.menu.evaluate import evaluate
        from headwaiter_export.menu.evaluators import EVALUATORS

        for name in names or EVALUATORS:
            if name not in EVALUATORS:
                raise SourceError(f"{name} has no evaluator; available: {', '.join(EVALUATORS)}.")
            with console.step(name):
                metrics = evaluate(name, max_examples)
            console.print(table(metrics))
            if max_examples is None:
                save_metrics(name, metrics)
