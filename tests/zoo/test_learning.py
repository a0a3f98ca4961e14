"""Learning: what goes on, what is kept, what is refused, what is recorded."""

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

from export.errors import SourceError
from export.zoo.cli import add_commands
from export.zoo.data.choice import KNOWN, learning_from, suited
from export.zoo.data.dates import Dates, forms
from export.zoo.data.digits import Digits
from export.zoo.data.reversing import Sorting
from export.zoo.outcome import Outcome
from export.zoo.registry import find, systems
from export.zoo.results import PAGE, record, recorded, written
from export.zoo.training import Progress, train

SYSTEMS = systems()


def test_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """To the same weights as a training that was never interrupted."""

    def interrupt(now: Progress) -> None:
        if now.done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SYSTEMS["vit"], tmp_path / "halted", steps=12, save_every=5, watch=interrupt)
    seen: list[int] = []
    train(SYSTEMS["vit"], tmp_path / "halted", steps=12, save_every=5, watch=lambda now: seen.append(now.done))
    train(SYSTEMS["vit"], tmp_path / "whole", steps=12)
    assert seen == list(range(6, 13))
    halted, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("halted", "whole"))
    for name, weight in whole.items():
        torch.testing.assert_close(halted[name], weight, atol=0, rtol=0)


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    train(SYSTEMS["vit"], tmp_path, steps=2)
    with pytest.raises(SourceError, match="holds vit trained on digits with seed 0 for 2 steps, not by the recipe"):
        train(SYSTEMS["vit"], tmp_path, steps=3)
    slower = replace(SYSTEMS["vit"], recipe=replace(SYSTEMS["vit"].recipe, rate=1e-4))
    with pytest.raises(SourceError, match="not by the recipe asked for"):
        train(slower, tmp_path, steps=2)


class Wavering(Digits):
    """Seems best in the middle of learning."""

    keeps_best = True

    def __init__(self) -> None:
        super().__init__()
        self.glimpses = iter([0.1, 0.9, 0.5])

    def glimpse(self, model: object, rng: np.random.Generator) -> float:  # noqa: ARG002
        return next(self.glimpses)


def test_where_the_last_is_not_the_best_the_best_is_kept(tmp_path: Path) -> None:
    wavering = replace(SYSTEMS["vit"], recipe=replace(SYSTEMS["vit"].recipe, data=Wavering))
    seen: list[float | None] = []
    train(wavering, tmp_path / "best", steps=6, save_every=2, watch=lambda now: seen.append(now.metric))
    assert seen == [None, 0.1, 0.1, 0.9, 0.9, 0.5]

    def interrupt(now: Progress) -> None:
        if now.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SYSTEMS["vit"], tmp_path / "fourth", steps=6, save_every=2, watch=interrupt)
    best, fourth = (load_file(tmp_path / name / "model.safetensors") for name in ("best", "fourth"))
    for name, weight in fourth.items():
        torch.testing.assert_close(best[name], weight, atol=0, rtol=0)


def test_every_system_can_learn_from_what_its_recipe_says_and_knows_its_metric() -> None:
    for system in SYSTEMS.values():
        assert suited(system)[system.recipe.data.name] is system.recipe.data
        assert learning_from(system, system.recipe.data.name).recipe == system.recipe
    assert len({data.name for data in KNOWN}) == len(KNOWN)


def test_other_data_have_no_bar() -> None:
    sorter = learning_from(find("transformer"), "sorting:length=5").recipe
    assert (sorter.data, sorter.options, sorter.bar) == (Sorting, {"length": 5}, None)
    longer = learning_from(find("seq2seq"), "reversing:length=9").recipe
    assert (longer.options, longer.bar) == ({"length": 9}, None)


def test_what_is_written_anew() -> None:
    rng = np.random.default_rng(0)
    given, answer = Sorting().example(rng)
    assert answer == sorted(given)
    assert [" ".join(form) for form in forms(date(2026, 6, 5))] == [
        "5 june 2 0 2 6",
        "friday 5 june 2 0 2 6",
        "june 5 , 2 0 2 6",
        "5 . 6 . 2 0 2 6",
        "0 5 / 0 6 / 2 0 2 6",
    ]
    drawn = [Dates().example(rng) for _ in range(300)]
    assert all(given in forms(date.fromisoformat("".join(answer))) for given, answer in drawn)
    assert max(len(given) for given, _ in drawn) <= Dates().length


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("vti",), "The zoo has no 'vti'; did you mean vit"),
        (("vit", "--data", "reversing"), "vit cannot learn from 'reversing'; it can from digits, fashion-mnist."),
        (("transformer", "--data", "sortin"), "it can from reversing, sorting, dates."),
        (("transformer", "--data", "sorting:size=3"), "sorting has no option 'size'; it has length."),
        (("transformer", "--data", "dates:length=3"), "dates has no option 'length'; it has none."),
        (("transformer", "--data", "sorting:length=long"), "length of sorting is 'long'; it has to be a number"),
        (("transformer", "--data", "sorting:length=0"), "length of sorting is 0; it has to be greater than 0."),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    app = typer.Typer()
    add_commands(app)
    result = CliRunner().invoke(app, ["zoo", "train", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert sentence in result.output
    assert not (tmp_path / "out").exists()


def reached(system: str, value: float) -> Outcome:
    recipe = SYSTEMS[system].recipe
    return Outcome(system, "exact", value, recipe.bar, True, 9.0, 7.0, 1234, "1/1", 3, "2026-01-02", recipe.stated())


def test_who_is_trained_anew_replaces_its_own_row(tmp_path: Path) -> None:
    file, page = tmp_path / "results.json", tmp_path / "RESULTS.md"
    for outcome in (reached("gpt2", 0.5), reached("vit", 0.96), reached("gpt2", 0.99)):
        record(outcome, file, page)
    assert [(name, row.value) for name, row in recorded(file).items()] == [("gpt2", 0.99), ("vit", 0.96)]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.read_text().splitlines()}
    assert rows.keys() >= SYSTEMS.keys()
    assert "| 0.98 | 0.990 | yes | 9 | 7 | 1,234 | 1/1 | 3 | 2026-01-02 | as now |" in rows["gpt2"]
    assert "| 0.95 | 0.960 | yes |" in rows["vit"]
    assert "| 0.98 | – | – |" in rows["transformer"]
    before = replace(reached("vit", 0.9), recipe={**reached("vit", 0.9).recipe, "rate": 0.5})
    record(before, file, page)
    assert "| no | 9 | 7 | 1,234 | 1/1 | 3 | 2026-01-02 | changed since |" in page.read_text()


def test_the_page_is_what_the_record_says() -> None:
    """`python -m export.zoo.results NAME` writes both."""
    assert PAGE.read_text(encoding="utf-8") == written(recorded())
