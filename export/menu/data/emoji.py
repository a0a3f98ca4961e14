"""Scenes of emoji: to be found, or to be told."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from export.menu.data.art import KINDS, LEARNED, drawings
from export.menu.data.composing import MOST, Art, Thing, compose, draw
from export.menu.data.telling import VOCABULARY, clear, kinds_in, tell
from export.zoo.data.asking import in_parts
from export.zoo.data.base import Data
from export.zoo.data.batches import HELD_OUT_SEED, next_word_loss, padded
from export.zoo.data.boxes import from_corners
from export.zoo.data.pictures import png, square
from export.zoo.data.precision import Found, There, mean_average_precision
from export.zoo.data.sets import Things, set_loss
from export.zoo.data.words import END, PAD, START, UNKNOWN, Words
from service.package import Decoding, Preprocessing

SIDE = 96
_HELD_OUT = 1000
_LEARNED_SEED = HELD_OUT_SEED + 2  # of scenes that are looked at once
_AT_ONCE = 64
_KINDS_TOLD = (0.2, 0.55, 0.25)  # how often a scene to be told has one kind, two, or three
Scene = tuple[Image.Image, list[Thing]]


class Emoji(Data):
    """Every scene to learn from is new: its seed is of the step that draws it."""

    def __init__(self, styles: tuple[str, ...] = LEARNED) -> None:
        self._styles, self._settings = styles, square(SIDE)

    @cached_property
    def art(self) -> Art:
        return {(style, kind): each for style in self._styles for kind, each in drawings(style).items()}

    def composed(self, rng: np.random.Generator) -> list[Thing]:
        return compose(rng, self._styles)

    def example(self, rng: np.random.Generator, size: int = SIDE) -> Scene:
        return draw(rng, size, self.composed(rng), self.art)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Tensor, list[list[Thing]]]:
        """Pixels [batch, 3, side, side] and what they show."""
        drawn = [self.example(rng) for _ in range(batch)]
        pixels = np.stack([np.asarray(picture) for picture, _ in drawn]).transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(pixels)).float() / 127.5 - 1, [things for _, things in drawn]

    def held_out(self, most: int | None = None) -> list[Scene]:
        """Scenes that are not learned from."""
        rng = np.random.default_rng(HELD_OUT_SEED)
        return [self.example(rng) for _ in range(most or _HELD_OUT)]


class EmojiScenes(Emoji):
    name = "scenes of emoji"
    metric = "mAP50"
    chance = 0.0

    def sizes(self) -> dict[str, Any]:
        return {"image": SIDE, "classes": len(KINDS)}

    def labels(self) -> tuple[str, ...]:
        return tuple(KINDS)

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        return Preprocessing(image=self._settings)

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        pixels, scenes = self.draw(rng, batch)
        truth = [_things(scene) for scene in scenes]
        return torch.stack([set_loss(scores, boxes, truth) for scores, boxes in model.guesses(pixels)]).sum()

    def measure(self, served: Any, most: int | None = None) -> float:
        return precision(served, self.held_out(most))


class EmojiCaptions(Emoji):
    name = "scenes of emoji, told"
    metric = "exact"
    chance = 1 / len(KINDS) / MOST  # naming one kind and a number
    room = 12  # tokens: `five butterflies to the left of a key`, with the start and the end

    def __init__(self, styles: tuple[str, ...] = LEARNED, scenes: int = 1000) -> None:
        """`scenes` to learn from: they are looked at once, by eyes that have learned already."""
        super().__init__(styles)
        self._words, self._scenes = Words(VOCABULARY), scenes
        self._learned: tuple[Tensor, Tensor] | None = None

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._words), "image": SIDE, "room": self.room}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._words.write(folder, self.room).model_copy(update={"image": self._settings})

    def decoding(self) -> Decoding:
        return Decoding(start=(START,), stop=(END,), never=(PAD, START, UNKNOWN), max_new_tokens=self.room - 1)

    def composed(self, rng: np.random.Generator) -> list[Thing]:
        """Only what has one right answer; two kinds most often, since they are told by where they are."""
        kinds = int(rng.choice(len(_KINDS_TOLD), p=_KINDS_TOLD)) + 1
        while True:
            things = compose(rng, self._styles, kinds)
            if len({thing.kind for thing in things}) == kinds and clear(things):
                return things

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        if self._learned is None:
            self._learned = self._looked_at(model)
        seen, sentences = self._learned
        chosen = torch.from_numpy(rng.integers(0, self._scenes, batch))
        tokens = sentences[chosen]
        return next_word_loss(model(tokens[:, :-1], model.consider(seen[chosen].float())), tokens[:, 1:])

    @torch.no_grad()
    def _looked_at(self, model: Any) -> tuple[Tensor, Tensor]:
        """What the model sees of each scene, in half precision, and the sentence."""
        rng, seen, sentences = np.random.default_rng(_LEARNED_SEED), [], []
        for start in range(0, self._scenes, _AT_ONCE):
            pixels, scenes = self.draw(rng, min(_AT_ONCE, self._scenes - start))
            seen.append(model.look(pixels).half())
            sentences += [[START, *self._words.encode(tell(things)), END] for things in scenes]
        return torch.cat(seen), padded(sentences)[0]

    def measure(self, served: Any, most: int | None = None) -> float:
        return told(served, self.held_out(most))[0]


def precision(served: Any, scenes: list[Scene]) -> float:
    """mAP50 of a served detector."""
    found = [
        Found(image, box.name, box.score, (box.x_min, box.y_min, box.x_max, box.y_max))
        for image, answer in enumerate(in_parts(lambda part: served.detect(part, threshold=0.0), _files(scenes)))
        for box in answer.boxes
    ]
    there = [There(image, thing.kind, thing.corners) for image, (_, things) in enumerate(scenes) for thing in things]
    return mean_average_precision(found, there)


def told(served: Any, scenes: list[Scene]) -> tuple[float, float]:
    """Of a served captioner: the share of sentences that are exact, and of those that name the right kinds."""
    said = [each.text for each in in_parts(lambda part: served.caption(part, beams=1), _files(scenes))]
    expected = [tell(things) for _, things in scenes]
    kinds = [kinds_in(one) == kinds_in(other) for one, other in zip(said, expected, strict=True)]
    return float(np.mean([one == other for one, other in zip(said, expected, strict=True)])), float(np.mean(kinds))


def _files(scenes: list[Scene]) -> list[bytes]:
    return [png(picture) for picture, _ in scenes]


def _things(scene: list[Thing]) -> Things:
    kinds = list(KINDS)
    corners = torch.tensor([thing.corners for thing in scene], dtype=torch.float32)
    return Things(torch.tensor([kinds.index(thing.kind) for thing in scene]), from_corners(corners) / SIDE)
