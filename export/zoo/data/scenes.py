"""Coloured shapes on a background: to be found, or to be told in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from export.zoo.data.base import Data
from export.zoo.data.batches import HELD_OUT_SEED, exact, next_word_loss, padded
from export.zoo.data.boxes import from_corners, to_corners
from export.zoo.data.drawing import ABOVE, COLOURS, LEFT_OF, OUTLINES, Shape, clear, compose, draw, tell
from export.zoo.data.pictures import png, square
from export.zoo.data.precision import Found, There, mean_average_precision
from export.zoo.data.sets import Things, set_loss
from export.zoo.data.words import END, PAD, START, UNKNOWN, Words
from export.zoo.model import Captioner, Detector
from export.zoo.recurrent import RecurrentCaptioner
from service.package import Decoding, Preprocessing
from service.tasks.images import prepare

_HELD_OUT, _GLIMPSED = 500, 100
_TRAINED = 12_000


class Drawn(Data):
    """Scenes of up to so many `shapes`. Those to learn from are drawn when they are first needed, and kept."""

    def __init__(self, image: int, shapes: int) -> None:
        self.image, self.shapes, self._settings = image, shapes, square(image)
        self._kept: dict[int, tuple[Image.Image, list[Shape]]] = {}

    def suits(self, shapes: list[Shape]) -> bool:  # noqa: ARG002
        """Whether there is one right answer to the scene."""
        return True

    def example(self, rng: np.random.Generator) -> tuple[Image.Image, list[Shape]]:
        count = int(rng.integers(1, self.shapes + 1))
        while not self.suits(shapes := compose(rng, self.image, count)):
            pass
        return draw(rng, self.image, shapes), shapes

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Tensor, list[list[Shape]]]:
        """Pixels [batch, 3, image, image] and what they show."""
        return self._prepared([self._trained(index) for index in rng.integers(0, _TRAINED, batch).tolist()])

    def fresh(self, rng: np.random.Generator, count: int) -> tuple[Tensor, list[list[Shape]]]:
        """The same of scenes that are not learned from."""
        return self._prepared([self.example(rng) for _ in range(count)])

    def _prepared(self, scenes: list[tuple[Image.Image, list[Shape]]]) -> tuple[Tensor, list[list[Shape]]]:
        pixels = np.stack([prepare(picture, self._settings) for picture, _ in scenes])
        return torch.from_numpy(pixels), [shapes for _, shapes in scenes]

    def _trained(self, index: int) -> tuple[Image.Image, list[Shape]]:
        if index not in self._kept:
            self._kept[index] = self.example(np.random.default_rng(index))
        return self._kept[index]

    def held_out(self, most: int | None) -> tuple[list[bytes], list[list[Shape]]]:
        """Files of scenes that are not learned from, and what they show."""
        rng = np.random.default_rng(HELD_OUT_SEED)
        drawn = [self.example(rng) for _ in range(most or _HELD_OUT)]
        return [png(picture) for picture, _ in drawn], [shapes for _, shapes in drawn]


class Scenes(Drawn):
    """Each shape has a box, and a class for its kind."""

    name = "scenes"
    learners = (Detector,)
    metric = "mAP50"
    chance = 0.0

    def __init__(self, image: int = 64, shapes: int = 4) -> None:
        super().__init__(image, shapes)

    def sizes(self) -> dict[str, Any]:
        return {"image": self.image, "classes": len(OUTLINES)}

    def labels(self) -> tuple[str, ...]:
        return tuple(OUTLINES)

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        return Preprocessing(image=self._settings)

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        pixels, scenes = self.draw(rng, batch)
        truth = [self._things(shapes) for shapes in scenes]
        return torch.stack([set_loss(scores, boxes, truth) for scores, boxes in model.guesses(pixels)]).sum()

    def glimpse(self, model: Any, rng: np.random.Generator) -> float:
        pixels, scenes = self.fresh(rng, _GLIMPSED)
        scores, boxes = model(pixels)
        best = scores.softmax(2)[:, :, :-1].max(2)
        corners = (to_corners(boxes) * self.image).tolist()
        found = [
            Found(image, self.labels()[kind], score, tuple(place))
            for image, guesses in enumerate(zip(best.indices.tolist(), best.values.tolist(), corners, strict=True))
            for kind, score, place in zip(*guesses, strict=True)
        ]
        return mean_average_precision(found, _all_there(scenes))

    def _things(self, shapes: list[Shape]) -> Things:
        corners = torch.tensor([shape.corners for shape in shapes])
        return Things(
            torch.tensor([self.labels().index(shape.kind) for shape in shapes]), from_corners(corners) / self.image
        )

    def measure(self, served: Any, most: int | None = None) -> float:
        pictures, scenes = self.held_out(most)
        found = [
            Found(image, box.name, box.score, (box.x_min, box.y_min, box.x_max, box.y_max))
            for image, answer in enumerate(served.detect(pictures, threshold=0.0))
            for box in answer.boxes
        ]
        return mean_average_precision(found, _all_there(scenes))


def _all_there(scenes: list[list[Shape]]) -> list[There]:
    return [There(image, shape.kind, shape.corners) for image, shapes in enumerate(scenes) for shape in shapes]


class SceneCaptions(Drawn):
    """A sentence says what stands where."""

    name = "scene-captions"
    learners = (Captioner, RecurrentCaptioner)
    metric = "exact"

    def __init__(self, image: int = 64, shapes: int = 3) -> None:
        super().__init__(image, shapes)
        self._words = Words(["a", *COLOURS, *OUTLINES, *LEFT_OF.split(), *ABOVE.split()])
        longest = f" {LEFT_OF} ".join(["a red star"] * shapes)
        self.room = len(longest.split()) + 2  # with the start and the end
        self.chance = 1 / (shapes * len(COLOURS) * len(OUTLINES))  # naming one shape and no more

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._words), "image": self.image, "room": self.room}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._words.write(folder, self.room).model_copy(update={"image": self._settings})

    def decoding(self) -> Decoding:
        return Decoding(start=(START,), stop=(END,), never=(PAD, START, UNKNOWN), max_new_tokens=self.room - 1)

    def suits(self, shapes: list[Shape]) -> bool:
        return clear(self.image, shapes)

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        return next_word_loss(*self._told(model, *self.draw(rng, batch)))

    def glimpse(self, model: Any, rng: np.random.Generator) -> float:
        return exact(*self._told(model, *self.fresh(rng, _GLIMPSED)))

    def _told(self, model: Any, pixels: Tensor, scenes: list[list[Shape]]) -> tuple[Tensor, Tensor]:
        """Logits and what was to come."""
        tokens, _ = padded([[START, *self._words.encode(tell(shapes)), END] for shapes in scenes])
        return model(tokens[:, :-1], model.encode(pixels)), tokens[:, 1:]

    def measure(self, served: Any, most: int | None = None) -> float:
        pictures, scenes = self.held_out(most)
        found = served.caption(pictures, beams=1)
        return float(np.mean([each.text == tell(shapes) for each, shapes in zip(found, scenes, strict=True)]))
