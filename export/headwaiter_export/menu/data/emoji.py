"""Emoji scenes, for detection and captioning."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from headwaiter.package.manifest import DecodingDefaults, Preprocessing
from headwaiter_export.menu.data.captions import VOCABULARY, classes_in, describe_scene, is_unambiguous
from headwaiter_export.menu.data.emoji_art import CLASSES, TRAINING_STYLES, drawings
from headwaiter_export.menu.data.scene_rendering import MAX_OBJECTS, Art, SceneObject, compose, draw
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batched_calls import call_in_batches
from headwaiter_export.zoo.data.batches import HELD_OUT_SEED, next_token_loss, pad_sequences
from headwaiter_export.zoo.data.boxes import corners_to_center
from headwaiter_export.zoo.data.image_encoding import encode_png, square_image_settings
from headwaiter_export.zoo.data.mean_average_precision import Detection, GroundTruth, mean_average_precision
from headwaiter_export.zoo.data.set_matching import TargetObjects, set_loss
from headwaiter_export.zoo.data.word_tokenizer import BOS, EOS, PAD, UNK, WordTokenizer

SIDE = 96
_HELD_OUT = 1000
_TRAINING_SEED = HELD_OUT_SEED + 2  # of scenes with precomputed features
_IMAGES_PER_BATCH = 64
_CLASS_COUNT_PROBABILITIES = (0.2, 0.55, 0.25)  # of one, two or three classes in a captioned scene
AnnotatedScene = tuple[Image.Image, list[SceneObject]]


class EmojiDataset(Dataset):
    """Training scenes are never repeated; each is drawn from the seed of its step."""

    def __init__(self, styles: tuple[str, ...] = TRAINING_STYLES) -> None:
        self._styles, self._settings = styles, square_image_settings(SIDE)

    @cached_property
    def art(self) -> Art:
        return {(style, name): drawing for style in self._styles for name, drawing in drawings(style).items()}

    def sample_objects(self, rng: np.random.Generator) -> list[SceneObject]:
        return compose(rng, self._styles)

    def example(self, rng: np.random.Generator, size: int = SIDE) -> AnnotatedScene:
        return draw(rng, size, self.sample_objects(rng), self.art)

    def sample_batch(self, rng: np.random.Generator, batch_size: int) -> tuple[Tensor, list[list[SceneObject]]]:
        """Return pixels [batch, 3, side, side] and the objects of each scene."""
        scenes = [self.example(rng) for _ in range(batch_size)]
        pixels = np.stack([np.asarray(picture) for picture, _ in scenes]).transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(pixels)).float() / 127.5 - 1, [objects for _, objects in scenes]

    def held_out(self, max_examples: int | None = None) -> list[AnnotatedScene]:
        """Held-out scenes."""
        rng = np.random.default_rng(HELD_OUT_SEED)
        return [self.example(rng) for _ in range(max_examples or _HELD_OUT)]


class EmojiScenes(EmojiDataset):
    name = "emoji scenes"
    metric = "mAP50"
    chance_level = 0.0

    def sizes(self) -> dict[str, Any]:
        return {"image": SIDE, "classes": len(CLASSES)}

    def labels(self) -> tuple[str, ...]:
        return tuple(CLASSES)

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        return Preprocessing(image=self._settings)

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        pixels, scenes = self.sample_batch(rng, batch_size)
        truth = [_target_objects(scene) for scene in scenes]
        return torch.stack([set_loss(scores, boxes, truth) for scores, boxes in model.predictions(pixels)]).sum()

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        return evaluate_detector(served, self.held_out(max_examples))


class EmojiCaptions(EmojiDataset):
    name = "emoji captions"
    metric = "exact"
    chance_level = 1 / len(CLASSES) / MAX_OBJECTS  # naming one class and a number
    room = 12  # tokens of `five butterflies to the left of a key` with start and end

    def __init__(self, styles: tuple[str, ...] = TRAINING_STYLES, scenes: int = 1000) -> None:
        """`scenes` is the number of training scenes; their features are computed once with the frozen detector."""
        super().__init__(styles)
        self._tokenizer, self._scenes = WordTokenizer(VOCABULARY), scenes
        self._training_data: tuple[Tensor, Tensor] | None = None

    def sizes(self) -> dict[str, Any]:
        return {"vocabulary": len(self._tokenizer), "image": SIDE, "room": self.room}

    def preprocessing(self, folder: Path) -> Preprocessing:
        return self._tokenizer.write(folder, self.room).model_copy(update={"image": self._settings})

    def decoding(self) -> DecodingDefaults:
        return DecodingDefaults(
            decoder_start_token_ids=(BOS,),
            eos_token_ids=(EOS,),
            suppress_tokens=(PAD, BOS, UNK),
            max_new_tokens=self.room - 1,
        )

    def sample_objects(self, rng: np.random.Generator) -> list[SceneObject]:
        """Sample only scenes with a unique caption, mostly of two classes because those are described by position."""
        class_count = int(rng.choice(len(_CLASS_COUNT_PROBABILITIES), p=_CLASS_COUNT_PROBABILITIES)) + 1
        while True:
            objects = compose(rng, self._styles, class_count)
            if len({obj.kind for obj in objects}) == class_count and is_unambiguous(objects):
                return objects

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        if self._training_data is None:
            self._training_data = self._precompute_features(model)
        features, captions = self._training_data
        selected = torch.from_numpy(rng.integers(0, self._scenes, batch_size))
        tokens = captions[selected]
        return next_token_loss(model(tokens[:, :-1], model.encode_features(features[selected].float())), tokens[:, 1:])

    @torch.no_grad()
    def _precompute_features(self, model: Any) -> tuple[Tensor, Tensor]:
        """Return the features of each training scene in half precision, and its caption tokens."""
        rng, features, captions = np.random.default_rng(_TRAINING_SEED), [], []
        for start in range(0, self._scenes, _IMAGES_PER_BATCH):
            pixels, scenes = self.sample_batch(rng, min(_IMAGES_PER_BATCH, self._scenes - start))
            features.append(model.extract_features(pixels).half())
            captions += [[BOS, *self._tokenizer.encode(describe_scene(objects)), EOS] for objects in scenes]
        return torch.cat(features), pad_sequences(captions)[0]

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        return evaluate_captions(served, self.held_out(max_examples))[0]


def evaluate_detector(served: Any, scenes: list[AnnotatedScene]) -> float:
    """mAP50 of a served detector."""
    detections = [
        Detection(image, box.name, box.score, (box.x_min, box.y_min, box.x_max, box.y_max))
        for image, result in enumerate(
            call_in_batches(lambda batch: served.detect(batch, threshold=0.0), _encode_images(scenes))
        )
        for box in result.boxes
    ]
    truth = [GroundTruth(image, obj.kind, obj.corners) for image, (_, objects) in enumerate(scenes) for obj in objects]
    return mean_average_precision(detections, truth)


def evaluate_captions(served: Any, scenes: list[AnnotatedScene]) -> tuple[float, float]:
    """Fractions of captions of a served captioner that match exactly, and that name the correct classes."""
    captions = [
        result.text
        for result in call_in_batches(lambda batch: served.caption(batch, num_beams=1), _encode_images(scenes))
    ]
    references = [describe_scene(objects) for _, objects in scenes]
    classes_match = [
        classes_in(caption) == classes_in(reference) for caption, reference in zip(captions, references, strict=True)
    ]
    return float(
        np.mean([caption == reference for caption, reference in zip(captions, references, strict=True)])
    ), float(np.mean(classes_match))


def _encode_images(scenes: list[AnnotatedScene]) -> list[bytes]:
    return [encode_png(picture) for picture, _ in scenes]


def _target_objects(scene: list[SceneObject]) -> TargetObjects:
    names = list(CLASSES)
    corners = torch.tensor([obj.corners for obj in scene], dtype=torch.float32)
    return TargetObjects(torch.tensor([names.index(obj.kind) for obj in scene]), corners_to_center(corners) / SIDE)
