"""Write the sample inputs of the repository and the test data of the menu: `python -m headwaiter_export.menu.samples`.

All samples are held-out data.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from headwaiter_export.menu.breakout_environment import Breakout, heuristic_move
from headwaiter_export.menu.data.definitions import Definitions
from headwaiter_export.menu.data.emoji import SIDE, EmojiCaptions
from headwaiter_export.zoo.data.batches import HELD_OUT_SEED
from headwaiter_export.zoo.data.fashion import LABELS, Fashion

REPOSITORY = Path(__file__).parents[3]
SAMPLES, TEST_DATA = REPOSITORY / "samples", REPOSITORY / "tests/data/menu"
_SAMPLE_SCALE = 3  # side of sample scenes relative to the model input
_SCENES, _GARMENTS, _DEFINITIONS = 48, 200, 200
_COLUMNS = 20
_SHOWN = (0, 1, 2)  # indices of the sample scenes
_MOVES = 9  # into a game, when the ball is in flight


def main() -> None:
    for folder in (SAMPLES, TEST_DATA):
        folder.mkdir(parents=True, exist_ok=True)
    _scenes()
    _garments()
    _definitions()
    _state()


def _scenes() -> None:
    data = EmojiCaptions()
    scenes = data.held_out(_SCENES)
    _contact_sheet([picture for picture, _ in scenes], 8).save(TEST_DATA / "scenes.png")
    annotations = [[asdict(obj) for obj in objects] for _, objects in scenes]
    (TEST_DATA / "scenes.json").write_text(json.dumps(annotations), encoding="utf-8")
    rng = np.random.default_rng(HELD_OUT_SEED + 1)
    for number in _SHOWN:
        picture, _ = data.example(rng, _SAMPLE_SCALE * SIDE)
        picture.save(SAMPLES / f"scene-{number + 1}.png")


def _garments() -> None:
    pictures, labels = Fashion().held_out(_GARMENTS)
    _contact_sheet(pictures, _COLUMNS).save(TEST_DATA / "garments.png")
    for picture, label in list(zip(pictures, labels, strict=True))[: len(LABELS)]:
        if LABELS[label] in ("bag", "dress", "sneaker"):
            picture.save(SAMPLES / f"{LABELS[label]}.png")


def _definitions() -> None:
    lines = [f"{topic}\t{text}\n" for text, topic in Definitions().held_out(_DEFINITIONS)]
    (TEST_DATA / "definitions.tsv").write_text("".join(lines), encoding="utf-8")


def _state() -> None:
    game = Breakout()
    state, _ = game.reset(HELD_OUT_SEED)
    for _ in range(_MOVES):
        state, *_ = game.step(heuristic_move(state))
    history = {"steps": [{"state": state.astype(int).tolist()}], "target_return": 40}
    (SAMPLES / "breakout.json").write_text(json.dumps(history) + "\n", encoding="utf-8")


def _contact_sheet(pictures: list[Image.Image], columns: int) -> Image.Image:
    """Paste all pictures into one image, left to right and top to bottom."""
    width, height = pictures[0].size
    sheet = Image.new(pictures[0].mode, (columns * width, -(-len(pictures) // columns) * height))
    for index, picture in enumerate(pictures):
        sheet.paste(picture, (index % columns * width, index // columns * height))
    return sheet


def split_contact_sheet(sheet: Image.Image, side: int) -> list[Image.Image]:
    """Split a contact sheet into its pictures."""
    return [
        sheet.crop((left, top, left + side, top + side))
        for top in range(0, sheet.height, side)
        for left in range(0, sheet.width, side)
    ]


if __name__ == "__main__":
    main()
