"""The built-in models behind a service, and the metrics of their cards on a fixed subset.

opus-mt-zh-en is tested in tests/export/test_opus_mt.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headwaiter import open_model
from headwaiter.client import Client, History, Step
from headwaiter.package.manifest import Package
from headwaiter_export.menu import menu
from headwaiter_export.menu.breakout_environment import MOVES
from headwaiter_export.menu.data import breakout, definitions, emoji
from headwaiter_export.menu.data.scene_rendering import SceneObject
from headwaiter_export.menu.results import results
from headwaiter_export.menu.samples import SAMPLES, TEST_DATA, split_contact_sheet
from headwaiter_export.pipeline import ExportRequest, export
from headwaiter_export.zoo.data import fashion
from loadtest.service_process import SINGLE_PROCESS, ServiceProcess, running_service

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
TRAINED_HERE = [name for name, entry in menu().items() if entry.artifact is None]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("menu")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("menu")


@pytest.fixture(scope="module")
def exported(folder: Path) -> dict[str, Package]:
    return {name: export(ExportRequest(name, out=folder / "models")) for name in TRAINED_HERE}


@pytest.fixture(scope="module")
def service(folder: Path, exported: dict[str, Package]) -> Iterator[ServiceProcess]:
    models = {name: {"path": f"models/{name}", "resources": {"cpus": 0.25}} for name in exported}
    with running_service(folder, models, options=SINGLE_PROCESS) as running:
        yield running


def test_served_models_samples_known_results(service: ServiceProcess) -> None:
    with service.client() as client:
        for name in ("bag", "dress", "sneaker"):
            best = client.classify("fashion-vit", image=SAMPLES / f"{name}.png", top_k=1).labels[0]
            assert best.name == name
        texts = ["a large grey animal with a trunk", "a town on the coast of Spain", "a person who bakes bread"]
        classified = client.classify("topics-bert", text=texts, top_k=1)
        assert [result.labels[0].name for result in classified] == ["animal", "place", "person"]
        state = json.loads((SAMPLES / "breakout.json").read_text(encoding="utf-8"))["steps"][0]["state"]
        action = client.act("breakout-dt", History([Step(state)], target_return=40))
        assert action.discrete == MOVES.index("left")


def test_readme_calls_return_shown_output(service: ServiceProcess) -> None:
    """All `headwaiter call` examples of the README, except those of opus-mt, which is not served here."""
    calls = re.findall(r"^    \$ (?:\.venv/bin/)?(headwaiter call .*)\n((?:    (?!\$).+\n)+)", README, re.MULTILINE)
    examples = [(shlex.split(call), output) for call, output in calls if "opus-mt" not in call]
    assert {menu()[call[2]].task for call, _ in examples} == {menu()[name].task for name in TRAINED_HERE}
    for call, output in examples:
        assert _words(_run(service, *call)) == _words(output.splitlines())


def test_readme_episode_example_runs(service: ServiceProcess) -> None:
    (code,) = re.findall(r"```python\n(with Client.*?episode.*?)```", README, re.DOTALL)
    state = json.loads((SAMPLES / "breakout.json").read_text(encoding="utf-8"))["steps"][0]["state"]
    names: dict[str, Any] = {"Client": Client, "state": state, "next_state": state}
    exec(code.replace("localhost:9000", service.grpc), names)
    assert names["action"].discrete in range(len(MOVES))


def test_play_command_beats_demonstrations(service: ServiceProcess) -> None:
    *_, last = _run(service, "headwaiter", "play", "breakout-dt", "--target-return", "40", "--seed", "2")
    bricks, moves = map(int, re.fullmatch(r"(\d+) bricks in (\d+) moves; target return 40", last).groups())  # type: ignore[union-attr]
    assert bricks > results()["breakout-dt"]["fp32"]["mean return of demonstrations"]
    assert 0 < moves <= breakout.TIMESTEPS


def _run(service: ServiceProcess, program: str, *arguments: str) -> list[str]:
    """Run a command line as a shell would, with optional `< FILE` at its end, and return the lines of its output."""
    *leading, operator, file = arguments
    stdin = (REPOSITORY / file).read_text(encoding="utf-8") if operator == "<" else None
    finished = subprocess.run(
        [str(Path(sys.executable).parent / program), *(leading if operator == "<" else arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "HEADWAITER_ADDRESS": service.grpc, "COLUMNS": "100"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def _words(lines: Iterable[str]) -> list[list[str]]:
    """Words of the non-empty lines."""
    return [words for line in lines if (words := line.split())]


def _scenes() -> list[emoji.AnnotatedScene]:
    annotations = json.loads((TEST_DATA / "scenes.json").read_text(encoding="utf-8"))
    pictures = split_contact_sheet(Image.open(TEST_DATA / "scenes.png"), emoji.SIDE)
    return [
        (picture, [SceneObject(**obj) for obj in objects])
        for picture, objects in zip(pictures, annotations, strict=True)
    ]


def _garments(served: Any) -> float:
    pictures = split_contact_sheet(Image.open(TEST_DATA / "garments.png"), 28)
    return fashion.accuracy(served, pictures, [index % len(fashion.LABELS) for index in range(len(pictures))])


def _definitions(served: Any) -> float:
    lines = (TEST_DATA / "definitions.tsv").read_text(encoding="utf-8").splitlines()
    return definitions.accuracy(served, [(text, topic) for topic, text in (line.split("\t") for line in lines)])


SUBSET_METRICS: dict[str, tuple[str, Callable[[Any], float], float]] = {
    "fashion-vit": ("accuracy", _garments, 0.05),
    "topics-bert": ("accuracy", _definitions, 0.05),
    "emoji-detr": ("mAP50", lambda served: emoji.evaluate_detector(served, _scenes()), 0.05),
    "emoji-captioner": ("exact", lambda served: emoji.evaluate_captions(served, _scenes())[0], 0.12),
    "breakout-dt": ("mean return at target return 40", lambda served: breakout.mean_return(served, 40, 30), 4.0),
}
"""Metric of the card, evaluation on the subset, and tolerance for the small number of examples."""


@pytest.mark.parametrize("name", TRAINED_HERE)
def test_exported_model_on_subset_matches_card(name: str, exported: dict[str, Package]) -> None:
    metric, evaluate, tolerance = SUBSET_METRICS[name]
    with open_model(exported[name].folder) as served:
        assert evaluate(served) == pytest.approx(results()[name]["fp32"][metric], abs=tolerance)
