from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headwaiter import open_model
from headwaiter.client import Client
from loadtest.gpu_packages import ExportedModel, GpuPackages, generator
from loadtest.gpu_smoke import _PROMPTS, Comparison, compare
from tests.serving_kit import write_package

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 120
no_gpu = pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine may have a GPU")


@no_gpu
def test_gpu_smoke_without_gpu_exits_1() -> None:
    command = [sys.executable, "-m", "loadtest.gpu_smoke"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert (result.returncode, result.stdout) == (1, "")
    assert "GPU" in result.stderr
    assert result.stderr.count("\n") == 1


@no_gpu
def test_make_gpu_smoke_without_gpu_creates_no_environment() -> None:
    command = ["make", "--no-print-directory", "gpu-smoke"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert result.returncode != 0
    assert "GPU" in result.stdout
    assert result.stdout.count("\n") == 1
    assert not (ROOT / ".venv-gpu").exists()


def test_exported_model_reuses_existing_package(tmp_path: Path) -> None:
    """A new export would fail, because the source does not exist."""
    write_package(tmp_path, "missing", version="3", precision="fp16")
    assert ExportedModel("missing", "3", "missing").package("fp16", tmp_path) == tmp_path / "missing/3/fp16"


@pytest.mark.parametrize(("agree", "agrees"), [(5, True), (4, True), (3, False), (0, False)])
def test_comparison_agrees_above_threshold(agree: int, agrees: bool) -> None:
    assert Comparison(agree, 5, 1.0).agrees is agrees


@pytest.mark.slow
def test_generator_package_generates(tmp_path: Path) -> None:
    model = generator(tmp_path / "checkpoints", steps=2)
    folder = model.package("fp16", tmp_path / "models")
    with open_model(folder) as opened:
        assert opened.manifest.task == "generation"
        assert len(opened.generate(list(_PROMPTS), num_beams=1)) == len(_PROMPTS)


def test_packages_saved_and_loaded_are_equal(tmp_path: Path) -> None:
    packages = GpuPackages({"größe": {"fp16": "models/a b/1/fp16", "fp32": "models/a b/1/fp32"}})
    packages.save(tmp_path / "new" / "packages.json")
    assert GpuPackages.load(tmp_path / "new" / "packages.json") == packages


@pytest.mark.slow
@pytest.mark.parametrize("model", ["writer", "idle"])
def test_compare_model_with_itself_agrees(client: Client, model: str) -> None:
    comparison = compare(client, model, model, seconds=0.2)
    assert comparison.agree == comparison.total > 3
    assert comparison.per_second > 0
