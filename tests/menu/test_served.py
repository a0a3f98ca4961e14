"""The models of the house behind Ray Serve, all at once, and the numbers of their cards on a fixed subset.

opus-mt-zh-en has this in tests/export/test_opus.py.
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

from export.menu import menu
from export.menu.breakout import MOVES
from export.menu.data import breakout, definitions, emoji
from export.menu.data.composing import Thing
from export.menu.results import results
from export.menu.samples import SAMPLES, SUBSET, cut
from export.pipeline import Order, export
from export.zoo.data import fashion
from loadtest.served import Service, serving
from service import open_model
from service.client import History, Step
from service.package import Package

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
MADE_HERE = [name for name, dish in menu().items() if dish.parcel is None]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("menu")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("menu")


@pytest.fixture(scope="module")
def exported(folder: Path) -> dict[str, Package]:
    return {name: export(Order(name, out=folder / "models")) for name in MADE_HERE}


@pytest.fixture(scope="module")
def service(folder: Path, exported: dict[str, Package]) -> Iterator[Service]:
    models = {name: {"path": f"models/{name}", "resources": {"cpus": 0.25}} for name in exported}
    with serving(folder, models) as running:
        yield running


def test_known_answers(service: Service) -> None:
    with service.client() as client:
        for name in ("bag", "dress", "sneaker"):
            best = client.classify("fashion-vit", image=SAMPLES / f"{name}.png", top_k=1).labels[0]
            assert best.name == name
        texts = ["a large grey animal with a trunk", "a town on the coast of Spain", "a person who bakes bread"]
        found = client.classify("topics-bert", text=texts, top_k=1)
        assert [each.labels[0].name for each in found] == ["animal", "place", "person"]
        state = json.loads((SAMPLES / "breakout.json").read_text(encoding="utf-8"))["steps"][0]["state"]
        action = client.act("breakout-dt", History([Step(state)], target_return=40))
        assert action.discrete == MOVES.index("left")


def test_the_transcript_of_the_readme(service: Service) -> None:
    """Every call of its opening gets the answer that it shows, but for the one of a model that is not served here."""
    calls = re.findall(r"^    \$ \.venv/bin/(headwaiter call .*)\n((?:    (?!\$).+\n)+)", README, re.MULTILINE)
    asked = [(shlex.split(call), answer) for call, answer in calls if "opus-mt" not in call]
    assert {call[2] for call, _ in asked} >= set(MADE_HERE)
    for call, answer in asked:
        assert _words(_said(service, *call)) == _words(answer.splitlines())


def test_play(service: Service) -> None:
    *_, last = _said(service, "headwaiter", "play", "breakout-dt", "--target-return", "40", "--seed", "2")
    bricks, moves = map(int, re.fullmatch(r"(\d+) bricks in (\d+) moves, asked for 40", last).groups())  # type: ignore[union-attr]
    assert bricks > results()["breakout-dt"]["fp32"]["mean return watched"]
    assert 0 < moves <= breakout.TIMESTEPS


def _said(service: Service, program: str, *arguments: str) -> list[str]:
    """By a command as a shell would run it, `< FILE` at its end or not."""
    *given, sign, file = arguments
    piped = (REPOSITORY / file).read_text(encoding="utf-8") if sign == "<" else None
    finished = subprocess.run(
        [str(Path(sys.executable).parent / program), *(given if sign == "<" else arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "HEADWAITER_ADDRESS": service.grpc, "COLUMNS": "100"},
        input=piped,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def _words(lines: Iterable[str]) -> list[list[str]]:
    """Of the lines that have some."""
    return [words for line in lines if (words := line.split())]


def _scenes() -> list[emoji.Scene]:
    described = json.loads((SUBSET / "scenes.json").read_text(encoding="utf-8"))
    pictures = cut(Image.open(SUBSET / "scenes.png"), emoji.SIDE)
    return [
        (picture, [Thing(**thing) for thing in things]) for picture, things in zip(pictures, described, strict=True)
    ]


def _garments(served: Any) -> float:
    pictures = cut(Image.open(SUBSET / "garments.png"), 28)
    return fashion.accuracy(served, pictures, [index % len(fashion.LABELS) for index in range(len(pictures))])


def _definitions(served: Any) -> float:
    lines = (SUBSET / "definitions.tsv").read_text(encoding="utf-8").splitlines()
    return definitions.accuracy(served, [(text, topic) for topic, text in (line.split("\t") for line in lines)])


ON_SUBSET: dict[str, tuple[str, Callable[[Any], float], float]] = {
    "fashion-vit": ("accuracy", _garments, 0.05),
    "topics-bert": ("accuracy", _definitions, 0.05),
    "emoji-detr": ("mAP50", lambda served: emoji.precision(served, _scenes()), 0.05),
    "emoji-captioner": ("exact", lambda served: emoji.told(served, _scenes())[0], 0.12),
    "breakout-dt": ("mean return when 40 is asked for", lambda served: breakout.reached(served, 40, 30), 4.0),
}
"""A number of the card, how it is measured, and how far few examples may be from all of them."""


@pytest.mark.parametrize("name", MADE_HERE)
def test_the_number_on_the_card(name: str, exported: dict[str, Package]) -> None:
    number, measure, tolerance = ON_SUBSET[name]
    with open_model(exported[name].folder) as served:
        assert measure(served) == pytest.approx(results()[name]["fp32"][number], abs=tolerance)
