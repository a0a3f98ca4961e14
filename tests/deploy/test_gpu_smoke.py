from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from loadtest.gpu_smoke import compare
from service.client import Client


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU here")
def test_without_a_gpu_it_says_so_and_stops() -> None:
    done = subprocess.run([sys.executable, "-m", "loadtest.gpu_smoke"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "There is no GPU here (nvidia-smi finds none); nothing was tried.\n")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["writer", "sleeper"])
def test_a_model_agrees_with_itself(client: Client, model: str) -> None:
    outcome = compare(client, model, model, seconds=0.2)
    assert outcome.agree == outcome.asked > 3
    assert outcome.per_second > 0
