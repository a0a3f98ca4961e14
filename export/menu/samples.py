"""`python -m export.menu.samples`: writes the sample inputs of the repository, and the subset that tests measure on.

All of it is of what was held out.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from export.menu.breakout import Breakout, sensible
from export.menu.data.definitions import Definitions
from export.menu.data.emoji import SIDE, EmojiCaptions
from export.zoo.data.batches import HELD_OUT_SEED
from export.zoo.data.fashion import LABELS, Fashion

REPOSITORY = Path(__file__).parents[2]
SAMPLES, SUBSET = REPOSITORY / "samples", REPOSITORY / "tests/data/menu"
_LARGER = 3  # how often the side of scenes that people look at
_SCENES, _GARMENTS, _DEFINITIONS = 48, 200, 200
_COLUMNS = 20
_SHOWN = (0, 1, 2)  # of the scenes
_MOVES = 9  # into a game: the ball is on its way


def main() -> None:
    for folder in (SAMPLES, SUBSET):
        folder.mkdir(parents=True, exist_ok=True)
    _scenes()
    _garments()
    _definitions()
    _state()


def _scenes() -> None:
    data = EmojiCaptions()
    scenes = data.held_out(_SCENES)
    _sheet([picture for picture, _ in scenes], 8).save(SUBSET / "scenes.png")
    described = [[asdict(thing) for thing in things] for _, things in scenes]
    (SUBSET / "scenes.json").write_text(json.dumps(described), encoding="utf-8")
    rng = np.random.default_rng(HELD_OUT_SEED + 1)
    for number in _SHOWN:
        picture, _ = data.example(rng, _LARGER * SIDE)
        picture.save(SAMPLES / f"scene-{number + 1}.png")


def _garments() -> None:
    pictures, kinds = Fashion().held_out(_GARMENTS)
    _sheet(pictures, _COLUMNS).save(SUBSET / "garments.png")
    for picture, kind in list(zip(pictures, kinds, strict=True))[: len(LABELS)]:
        if LABELS[kind] in ("bag", "dress", "sneaker"):
            picture.save(SAMPLES / f"{LABELS[kind]}.png")


def _definitions() -> None:
    lines = [f"{topic}\t{text}\n" for text, topic in Definitions().held_out(_DEFINITIONS)]
    (SUBSET / "definitions.tsv").write_text("".join(lines), encoding="utf-8")


def _state() -> None:
    game = Breakout()
    state, _ = game.reset(HELD_OUT_SEED)
    for _ in range(_MOVES):
        state, *_ = game.step(sensible(state))
    history = {"steps": [{"state": state.astype(int).tolist()}], "target_return": 40}
    (SAMPLES / "breakout.json").write_text(json.dumps(history) + "\n", encoding="utf-8")


def _sheet(pictures: list[Image.Image], columns: int) -> Image.Image:
    """All of them in one, from left to right and from top to bottom."""
    width, height = pictures[0].size
    sheet = Image.new(pictures[0].mode, (columns * width, -(-len(pictures) // columns) * height))
    for index, picture in enumerate(pictures):
        sheet.paste(picture, (index % columns * width, index // columns * height))
    return sheet


def cut(sheet: Image.Image, side: int) -> list[Image.Image]:
    """The pictures of a sheet again."""
    return [
        sheet.crop((left, top, left + side, top + side))
        for top in range(0, sheet.height, side)
        for left in range(0, sheet.width, side)
    ]


if __name__ == "__main__":
    main()
