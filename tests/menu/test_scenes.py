"""Scenes of emoji: where things lie, and what is said of them. Drawings here are plain rectangles."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from export.menu.data.art import KINDS, LEARNED
from export.menu.data.composing import MOST, Thing, compose, draw
from export.menu.data.telling import VOCABULARY, clear, kinds_in, tell

SIZE = 96
ART = {(style, kind): Image.new("RGBA", (40, 20), "red") for style in LEARNED for kind in KINDS}


def _thing(kind: str, x: float, y: float) -> Thing:
    return Thing(kind, "noto", x, y, extent=0.2, tilt=0.0, mirrored=False)


TOLD = {
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


@pytest.mark.parametrize("sentence", TOLD)
def test_one_sentence_is_right(sentence: str) -> None:
    things = [_thing(*each) for each in TOLD[sentence]]
    assert clear(things)
    assert tell(things) == sentence
    assert set(sentence.split()) <= set(VOCABULARY)
    assert kinds_in(sentence) == {thing.kind for thing in things}


@pytest.mark.parametrize(
    "places",
    [
        [("dog", 0.45, 0.5), ("cat", 0.5, 0.5)],
        [("dog", 0.2, 0.2), ("cat", 0.7, 0.72)],
        [("dog", 0.1, 0.5), ("cat", 0.5, 0.5), ("dog", 0.9, 0.5)],
    ],
    ids=["side by side", "as far down as across", "one between the others"],
)
def test_a_matter_of_opinion_is_not_asked(places: list[tuple[str, float, float]]) -> None:
    assert not clear([_thing(*place) for place in places])


def test_boxes_are_around_what_is_drawn() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        picture, things = draw(rng, SIZE, compose(rng, LEARNED), ART)
        assert picture.size == (SIZE, SIZE)
        assert 1 <= len(things) <= MOST
        for thing in things:
            left, top, right, bottom = thing.corners
            assert 0 <= left < right <= SIZE
            assert 0 <= top < bottom <= SIZE
            longer = max(right - left, bottom - top) / SIZE
            assert 0.8 * thing.extent <= longer <= 1.3 * thing.extent
            assert abs((left + right) / 2 - SIZE * thing.x) <= 1.5
    alone = [_thing("dog", 0.5, 0.5)]
    picture, (dog,) = draw(rng, SIZE, alone, ART)
    left, top, right, bottom = (int(side) for side in dog.corners)
    redness = np.asarray(picture, int)[..., 0] - np.asarray(picture, int)[..., 1:].max(2)
    inside = np.zeros((SIZE, SIZE), bool)
    inside[top:bottom, left:right] = True
    assert redness[inside].min() > 60, "the box is filled by the rectangle"


def test_seeds_decide_everything() -> None:
    (one, there), (other, same) = (
        draw(rng, SIZE, compose(rng, LEARNED), ART) for rng in map(np.random.default_rng, (7, 7))
    )
    assert one.tobytes() == other.tobytes()
    assert there == same
