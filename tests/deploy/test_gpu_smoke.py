from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.gpu_smoke import _PROMPTS, Outcome, Wanted, compare, writer
from service.client import Client
from service.model import open_model
from tests.serving_kit import write_package

ROOT = Path(__file__).parents[2]
no_gpu = pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU here")


@no_gpu
def test_without_a_gpu_it_says_so_and_stops() -> None:
    done = subprocess.run([sys.executable, "-m", "loadtest.gpu_smoke"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "There is no GPU here (nvidia-smi finds none); nothing was tried.\n")


@no_gpu
def test_without_a_gpu_no_environment_is_made_for_one() -> None:
    done = subprocess.run(["make", "--no-print-directory", "gpu-smoke"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout == "There is no GPU here (no nvidia-smi); nothing was tried.\n"
    assert not (ROOT / ".venv-gpu").exists()


def test_a_package_that_is_there_is_taken(tmp_path: Path) -> None:
    """To export it again would fail: there is no such model."""
    write_package(tmp_path, "nobody", version="3", precision="fp16")
    assert Wanted("nobody", "3", "nobody").package("fp16", tmp_path) == tmp_path / "nobody/3/fp16"


@pytest.mark.parametrize(("agree", "agrees"), [(5, True), (4, True), (3, False), (0, False)])
def test_answers_agree_or_do_not(agree: int, agrees: bool) -> None:
    assert Outcome(agree, 5, 1.0).agrees is agrees


@pytest.mark.slow
def test_something_generates(tmp_path: Path) -> None:
    wanted = writer(tmp_path / "checkpoints", steps=2)
    folder = wanted.package("fp16", tmp_path / "models")
    with open_model(folder) as model:
        assert model.manifest.task == "generation"
        assert len(model.generate(list(_PROMPTS), beams=1)) == len(_PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["writer", "sleeper"])
def test_a_model_agrees_with_itself(client: Client, model: str) -> None:
    outcome = compare(client, model, model, seconds=0.2)
    assert outcome.agree == outcome.asked > 3
    assert outcome.per_second > 0
