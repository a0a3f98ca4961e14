"""Training: resumption, saved checkpoints, dataset selection and recorded results."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import load_file
from typer.testing import CliRunner

from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.cli import add_commands
from headwaiter_export.zoo.data.dates import Dates, forms
from headwaiter_export.zoo.data.digits import Digits
from headwaiter_export.zoo.data.reversing import Sorting
from headwaiter_export.zoo.data.selection import DATASETS, compatible_datasets, with_dataset
from headwaiter_export.zoo.registry import architectures, find_architecture
from headwaiter_export.zoo.results import RESULTS_PAGE, load_results, render_page, save_result
from headwaiter_export.zoo.training import Progress, train
from headwaiter_export.zoo.training_result import TrainingResult

ARCHITECTURES = architectures()


def test_train_interrupted_resumes_to_same_weights(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(ARCHITECTURES["vit"], tmp_path / "resumed", steps=12, save_every=5, on_progress=interrupt)
    done_steps: list[int] = []
    train(
        ARCHITECTURES["vit"],
        tmp_path / "resumed",
        steps=12,
        save_every=5,
        on_progress=lambda progress: done_steps.append(progress.done),
    )
    train(ARCHITECTURES["vit"], tmp_path / "uninterrupted", steps=12)
    assert done_steps == list(range(6, 13))
    resumed, uninterrupted = (load_file(tmp_path / name / "model.safetensors") for name in ("resumed", "uninterrupted"))
    for name, weight in uninterrupted.items():
        torch.testing.assert_close(resumed[name], weight, atol=0, rtol=0)


def test_train_folder_of_other_run_rejected(tmp_path: Path) -> None:
    train(ARCHITECTURES["vit"], tmp_path, steps=2)
    with pytest.raises(SourceError, match="vit on digits, seed 0, 2 steps"):
        train(ARCHITECTURES["vit"], tmp_path, steps=3)
    slower = replace(ARCHITECTURES["vit"], recipe=replace(ARCHITECTURES["vit"].recipe, learning_rate=1e-4))
    with pytest.raises(SourceError, match="other settings"):
        train(slower, tmp_path, steps=2)


class BestInTheMiddle(Digits):
    """Validates best in the middle of training."""

    keep_best = True

    def __init__(self) -> None:
        super().__init__()
        self.validation_metrics = iter([0.1, 0.9, 0.5])

    def validate(self, model: object, rng: np.random.Generator) -> float:  # noqa: ARG002
        return next(self.validation_metrics)


def test_train_keep_best_saves_best_validation(tmp_path: Path) -> None:
    architecture = replace(ARCHITECTURES["vit"], recipe=replace(ARCHITECTURES["vit"].recipe, data=BestInTheMiddle))
    metrics: list[float | None] = []
    train(
        architecture,
        tmp_path / "best",
        steps=6,
        save_every=2,
        on_progress=lambda progress: metrics.append(progress.metric),
    )
    assert metrics == [None, 0.1, 0.1, 0.9, 0.9, 0.5]

    def interrupt(progress: Progress) -> None:
        if progress.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(ARCHITECTURES["vit"], tmp_path / "fourth", steps=6, save_every=2, on_progress=interrupt)
    best, fourth = (load_file(tmp_path / name / "model.safetensors") for name in ("best", "fourth"))
    for name, weight in fourth.items():
        torch.testing.assert_close(best[name], weight, atol=0, rtol=0)


def test_compatible_datasets_include_recipe_dataset() -> None:
    for architecture in ARCHITECTURES.values():
        assert compatible_datasets(architecture)[architecture.recipe.data.name] is architecture.recipe.data
        assert with_dataset(architecture, architecture.recipe.data.name).recipe == architecture.recipe
    assert len({data.name for data in DATASETS}) == len(DATASETS)


def test_with_dataset_other_options_has_no_target() -> None:
    sorter = with_dataset(find_architecture("transformer"), "sorting:length=5").recipe
    assert (sorter.data, sorter.options, sorter.target) == (Sorting, {"length": 5}, None)
    longer = with_dataset(find_architecture("seq2seq"), "reversing:length=9").recipe
    assert (longer.options, longer.target) == ({"length": 9}, None)


def test_rewriting_examples_follow_rule() -> None:
    rng = np.random.default_rng(0)
    source, target = Sorting().example(rng)
    assert target == sorted(source)
    assert [" ".join(form) for form in forms(date(2026, 6, 5))] == [
        "5 june 2 0 2 6",
        "friday 5 june 2 0 2 6",
        "june 5 , 2 0 2 6",
        "5 . 6 . 2 0 2 6",
        "0 5 / 0 6 / 2 0 2 6",
    ]
    examples = [Dates().example(rng) for _ in range(300)]
    assert all(source in forms(date.fromisoformat("".join(target))) for source, target in examples)
    assert max(len(source) for source, _ in examples) <= Dates().length


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("vti",), ("'vti'", "did you mean vit")),
        (
            ("vit", "--data", "reversing"),
            ("vit cannot be trained on 'reversing'; compatible datasets: digits, fashion-mnist.",),
        ),
        (("transformer", "--data", "sortin"), ("'sortin'", "reversing, sorting, dates.")),
        (("transformer", "--data", "sorting:size=3"), ("sorting", "'size'", "available: length.")),
        (("transformer", "--data", "dates:length=3"), ("dates", "'length'", "no options.")),
        (("transformer", "--data", "sorting:length=long"), ("length of sorting is 'long'", "number")),
        (("transformer", "--data", "sorting:length=0"), ("length of sorting is 0", "greater than 0.")),
    ],
)
def test_train_command_invalid_arguments_rejected(
    arguments: tuple[str, ...], fragments: tuple[str, ...], tmp_path: Path
) -> None:
    app = typer.Typer()
    add_commands(app)
    result = CliRunner().invoke(app, ["zoo", "train", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert all(fragment in result.output for fragment in fragments)
    assert not (tmp_path / "out").exists()


def make_result(architecture: str, value: float) -> TrainingResult:
    recipe = ARCHITECTURES[architecture].recipe
    return TrainingResult(
        architecture, "exact", value, recipe.target, True, 9.0, 7.0, 1234, "1/1", 3, "2026-01-02", recipe.to_dict()
    )


def test_save_result_same_architecture_replaces_row(tmp_path: Path) -> None:
    file, page = tmp_path / "results.json", tmp_path / "RESULTS.md"
    for training_result in (make_result("gpt2", 0.5), make_result("vit", 0.96), make_result("gpt2", 0.99)):
        save_result(training_result, file, page)
    assert [(name, row.value) for name, row in load_results(file).items()] == [("gpt2", 0.99), ("vit", 0.96)]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.read_text().splitlines()}
    assert rows.keys() >= ARCHITECTURES.keys()
    assert "| 0.98 | 0.990 | yes | 9 | 7 | 1,234 | 1/1 | 3 | 2026-01-02 | current |" in rows["gpt2"]
    assert "| 0.95 | 0.960 | yes |" in rows["vit"]
    assert "| 0.98 | – | – |" in rows["transformer"]
    outdated = replace(make_result("vit", 0.9), recipe={**make_result("vit", 0.9).recipe, "learning_rate": 0.5})
    save_result(outdated, file, page)
    assert "| no | 9 | 7 | 1,234 | 1/1 | 3 | 2026-01-02 | changed |" in page.read_text()


def test_results_page_matches_results_json() -> None:
    assert RESULTS_PAGE.read_text(encoding="utf-8") == render_page(load_results()), (
        "run `python -m headwaiter_export.zoo.results NAME`, which writes both"
    )
