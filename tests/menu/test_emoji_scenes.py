"""Emoji scenes: object boxes and captions. The drawings are plain rectangles."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from headwaiter_export.menu.data.captions import VOCABULARY, classes_in, describe_scene, is_unambiguous
from headwaiter_export.menu.data.emoji_art import CLASSES, TRAINING_STYLES
from headwaiter_export.menu.data.scene_rendering import MAX_OBJECTS, SceneObject, compose, draw

SIZE = 96
ART = {(style, name): Image.new("RGBA", (40, 20), "red") for style in TRAINING_STYLES for name in CLASSES}


def _object(kind: str, x: float, y: float) -> SceneObject:
    return SceneObject(kind, "noto", x, y, extent=0.2, tilt=0.0, mirrored=False)


CAPTIONS = {
    "a dog": [("dog", 0.5, 0.5)],
    "an owl": [("owl", 0.5, 0.5)],
    "two fish": [("fish", 0.2, 0.5), ("fish", 0.7, 0.5)],
    "a dog to the left of two pizzas": [("pizza", 0.8, 0.2), ("dog", 0.2, 0.5), ("pizza", 0.7, 0.8)],
    "two pizzas to the left of a dog": [("pizza", 0.2, 0.2), ("dog", 0.8, 0.5), ("pizza", 0.3, 0.8)],
    "three butterflies above a cat": [
        ("butterfly", 0.2, 0.1),
        ("cat", 0.5, 0.8),
        ("butterfly", 0.5, 0.2),
        ("butterfly", 0.8, 0.1),
    ],
    "an apple and a car and two keys": [("key", 0.1, 0.1), ("car", 0.5, 0.9), ("apple", 0.9, 0.1), ("key", 0.5, 0.5)],
}


@pytest.mark.parametrize("caption", CAPTIONS)
def test_describe_scene_unambiguous_scene_returns_caption(caption: str) -> None:
    objects = [_object(*placement) for placement in CAPTIONS[caption]]
    assert is_unambiguous(objects)
    assert describe_scene(objects) == caption
    assert set(caption.split()) <= set(VOCABULARY)
    assert classes_in(caption) == {obj.kind for obj in objects}


@pytest.mark.parametrize(
    "placements",
    [
        [("dog", 0.45, 0.5), ("cat", 0.5, 0.5)],
        [("dog", 0.2, 0.2), ("cat", 0.7, 0.72)],
        [("dog", 0.1, 0.5), ("cat", 0.5, 0.5), ("dog", 0.9, 0.5)],
    ],
    ids=["too close", "diagonal", "interleaved"],
)
def test_is_unambiguous_unclear_positions_false(placements: list[tuple[str, float, float]]) -> None:
    assert not is_unambiguous([_object(*placement) for placement in placements])


def test_draw_corners_enclose_objects() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        picture, objects = draw(rng, SIZE, compose(rng, TRAINING_STYLES), ART)
        assert picture.size == (SIZE, SIZE)
        assert 1 <= len(objects) <= MAX_OBJECTS
        for obj in objects:
            left, top, right, bottom = obj.corners
            assert 0 <= left < right <= SIZE
            assert 0 <= top < bottom <= SIZE
            longer = max(right - left, bottom - top) / SIZE
            assert 0.8 * obj.extent <= longer <= 1.3 * obj.extent
            assert abs((left + right) / 2 - SIZE * obj.x) <= 1.5
    single_object = [_object("dog", 0.5, 0.5)]
    picture, (dog,) = draw(rng, SIZE, single_object, ART)
    left, top, right, bottom = (int(side) for side in dog.corners)
    redness = np.asarray(picture, int)[..., 0] - np.asarray(picture, int)[..., 1:].max(2)
    inside = np.zeros((SIZE, SIZE), bool)
    inside[top:bottom, left:right] = True
    assert redness[inside].min() > 60, "the rectangle fills the box"


def test_draw_same_seed_same_scene() -> None:
    (first, first_objects), (second, second_objects) = (
        draw(rng, SIZE, compose(rng, TRAINING_STYLES), ART) for rng in map(np.random.default_rng, (7, 7))
    )
    assert first.tobytes() == second.tobytes()
    assert first_objects == second_objects
