"""Scenes of colored shapes, for detection and captioning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from headwaiter.package.manifest import DecodingDefaults, Preprocessing
from headwaiter.tasks.images import prepare
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batches import HELD_OUT_SEED, exact_match, next_token_loss, pad_sequences
from headwaiter_export.zoo.data.boxes import center_to_corners, corners_to_center
from headwaiter_export.zoo.data.image_encoding import encode_png, square_image_settings
from headwaiter_export.zoo.data.mean_average_precision import Detection, GroundTruth, mean_average_precision
from headwaiter_export.zoo.data.set_matching import TargetObjects, set_loss
from headwaiter_export.zoo.data.shape_scenes import (
    ABOVE,
    COLOURS,
    LEFT_OF,
    OUTLINES,
    Shape,
    compose,
    describe_scene,
    draw,
    is_unambiguous,
)
from headwaiter_export.zoo.data.word_tokenizer import BOS, EOS, PAD, UNK, WordTokenizer
from headwaiter_export.zoo.model import Captioner, Detector
from headwaiter_export.zoo.recurrent import RecurrentCaptioner

_HELD_OUT, _VALIDATION_EXAMPLES = 500, 100
_TRAINING_SCENES = 12_000


class SceneDataset(Dataset):
    """Scenes of up to `shapes` shapes. Training scenes are rendered on first use and cached."""

    def __init__(self, image: int, shapes: int) -> None:
        self.image, self.shapes, self._settings = image, shapes, square_image_settings(image)
        self._scene_cache: dict[int, tuple[Image.Image, list[Shape]]] = {}

    def is_valid(self, shapes: list[Shape]) -> bool:  # noqa: ARG002
        """Whether the scene has a unique correct output."""
        return True

    def example(self, rng: np.random.Generator) -> tuple[Image.Image, list[Shape]]:
        count = int(rng.integers(1, self.shapes + 1))
        while not self.is_valid(shapes := compose(rng, self.image, count)):
            pass
        return draw(rng, self.image, shapes), shapes

    def sample_batch(self, rng: np.random.Generator, batch_size: int) -> tuple[Tensor, list[list[Shape]]]:
        """Return pixels [batch, 3, image, image] of training scenes and their shapes."""
        return self._to_batch(
            [self._training_scene(index) for index in rng.integers(0, _TRAINING_SCENES, batch_size).tolist()]
        )

    def sample_unseen(self, rng: np.random.Generator, count: int) -> tuple[Tensor, list[list[Shape]]]:
        """Like `sample_batch`, with scenes that are not used in training."""
        return self._to_batch([self.example(rng) for _ in range(count)])

    def _to_batch(self, scenes: list[tuple[Image.Image, list[Shape]]]) -> tuple[Tensor, list[list[Shape]]]:
        pixels = np.stack([prepare(picture, self._settings) for picture, _ in scenes])
        return torch.from_numpy(pixels), [shapes for _, shapes in scenes]

    def _training_scene(self, index: int) -> tuple[Image.Image, list[Shape]]:
        if index not in self._scene_cache:
            self._scene_cache[index] = self.example(np.random.default_rng(index))
        return self._scene_cache[index]

    def held_out(self, max_examples: int | None) -> tuple[list[bytes], list[list[Shape]]]:
        """Return PNG files of held-out scenes and their shapes."""
        rng = np.random.default_rng(HELD_OUT_SEED)
        scenes = [self.example(rng) for _ in range(max_examples or _HELD_OUT)]
        return [encode_png(picture) for picture, _ in scenes], [shapes for _, shapes in scenes]


class Scenes(SceneDataset):
    """Detection; the class of an object is the kind of its shape."""

    name = "scenes"
    compatible_models = (Detector,)
    metric = "mAP50"
    chance_level = 0.0

    def __init__(self, image: int = 64, shapes: int = 4) -> None:
        super().__init__(image, shapes)

    def sizes(self) -> dict[str, Any]:
        return {"image": self.image, "classes": len(OUTLINES)}

    def labels(self) -> tuple[str, ...]:
        return tuple(OUTLINES)

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        return Preprocessing(image=self._settings)

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        pixels, scenes = self.sample_batch(rng, batch_size)
        truth = [self._target_objects(shapes) for shapes in scenes]
        return torch.stack([set_loss(scores, boxes, truth) for scores, boxes in model.predictions(pixels)]).sum()

    def validate(self, model: Any, rng: np.random.Generator) -> float:
        pixels, scenes = self.sample_unseen(rng, _VALIDATION_EXAMPLES)
        scores, boxes = model(pixels)
        best = scores.softmax(2)[:, :, :-1].max(2)
        corners = (center_to_corners(boxes) * self.image).tolist()
        detections = [
            Detection(image, self.labels()[label], score, tuple(box))
            for image, predictions in enumerate(zip(best.indices.tolist(), best.values.tolist(), corners, strict=True))
            for label, score, box in zip(*predictions, strict=True)
        ]
        return mean_average_precision(detections, _ground_truth(scenes))

    def _target_objects(self, shapes: list[Shape]) -> TargetObjects:
        corners = torch.tensor([shape.corners for shape in shapes])
        return TargetObjects(
            torch.tensor([self.labels().index(shape.kind) for shape in shapes]), corners_to_center(corners) / self.image
        )

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        pictures, scenes = self.held_out(max_examples)
        detections = [
            Detection(image, box.name, box.score, (box.x_min, box.y_min, box.x_max, box.y_max))
            for image, result in enumerate(served.detect(pictures, threshold=0.0))
            for box in result.boxes
        ]
        return mean_average_precision(detections, _ground_truth(scenes))


def _ground_truth(scenes: list[list[Shape]]) -> list[GroundTruth]:
    return [GroundTruth(image, shape.kind, shape.corners) for image, shapes in enumerate(scenes) for shape in shapes]


class SceneCaptions(SceneDataset):
    """Captions that describe the relative positions of the shapes."""

    name = "scene-captions"
    compatible_models = (Captioner, RecurrentCaptioner)
    metric = "exact"

    def __init__(self, image: int = 64, shapes: int = 3) -> None:
        super().__init__(image, shapes)
        self._tokenizer = WordTokenizer(["a", *COLOURS, *OUTLINES, *LEFT_OF.split(), *ABOVE.split()])
        longest = f" {LEFT_OF} ".join(["a red star"] * shapes)
        self.room = len(longest.split()) + 2  # including start and end tokens
        self.chance_level = 1 / (shapes * len(COLOURS) * len(OUTLINES))  # naming a single shape

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._tokenizer), "image": self.image, "room": self.room}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._tokenizer.write(folder, self.room).model_copy(update={"image": self._settings})

    def decoding(self) -> DecodingDefaults:
        return DecodingDefaults(
            decoder_start_token_ids=(BOS,),
            eos_token_ids=(EOS,),
            suppress_tokens=(PAD, BOS, UNK),
            max_new_tokens=self.room - 1,
        )

    def is_valid(self, shapes: list[Shape]) -> bool:
        return is_unambiguous(self.image, shapes)

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        return next_token_loss(*self._forward(model, *self.sample_batch(rng, batch_size)))

    def validate(self, model: Any, rng: np.random.Generator) -> float:
        return exact_match(*self._forward(model, *self.sample_unseen(rng, _VALIDATION_EXAMPLES)))

    def _forward(self, model: Any, pixels: Tensor, scenes: list[list[Shape]]) -> tuple[Tensor, Tensor]:
        """Return logits and target tokens."""
        tokens, _ = pad_sequences([[BOS, *self._tokenizer.encode(describe_scene(shapes)), EOS] for shapes in scenes])
        return model(tokens[:, :-1], model.encode(pixels)), tokens[:, 1:]

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        pictures, scenes = self.held_out(max_examples)
        results = served.caption(pictures, num_beams=1)
        return float(
            np.mean([result.text == describe_scene(shapes) for result, shapes in zip(results, scenes, strict=True)])
        )
