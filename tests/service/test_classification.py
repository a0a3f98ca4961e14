"""Labels and scores are those of transformers' own pipelines."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import pipeline

from service.engine.batcher import Batcher, PassJob
from service.engine.session import Arrays, Session
from service.package import Package
from service.tasks.classification import Classification, Label
from service.tasks.errors import InputError
from tests.checkpoints_kit import CLASSES, POSITIONS
from tests.conftest import Packages
from tests.images_kit import noise
from tests.tokenizers_kit import ENGLISH

PAIRS = [
    ("", None),
    ("   ", None),
    ("soup", None),
    ("soup", ""),
    *((text, None) for text in ENGLISH[:2]),
    ("Is the bar open?", "until midnight"),
    ("", "until midnight"),
]
SIZES = [(24, 40), (40, 24), (1, 1), (300, 17), (64, 64)]


def outputs_of(package: Package, inputs: list[Arrays]) -> list[Arrays]:
    batcher = Batcher(Session(package, threads=1))
    batcher.start()
    jobs = [PassJob(arrays) for arrays in inputs]
    for job in jobs:
        batcher.submit(job)
    answers = [job.future.result(60).outputs for job in jobs]
    batcher.close()
    return answers


def assert_as_pipeline(found: tuple[Label, ...], expected: list[dict[str, Any]]) -> None:
    assert [label.name for label in found] == [each["label"] for each in expected]
    assert [label.score for label in found] == pytest.approx([each["score"] for each in expected], abs=2e-6)
    assert all(CLASSES[label.index] == label.name for label in found)


@pytest.mark.parametrize("kind", ["bert", "distilbert"], ids=["softmax, segments", "multi-label"])
def test_texts_as_transformers(packages: Packages, kind: str) -> None:
    exported = packages(kind, "fp32")
    folder, package = exported.checkpoint, exported.package
    theirs = pipeline("text-classification", model=str(folder), top_k=None)
    task = Classification(package)
    answers = outputs_of(package, [task.prepare_text(*pair) for pair in PAIRS])
    for (text, pair), outputs in zip(PAIRS, answers, strict=True):
        expected = theirs({"text": text, "text_pair": pair} if pair else {"text": text})
        assert_as_pipeline(task.answer(outputs), expected)
        total = sum(label.score for label in task.answer(outputs))
        assert package.manifest.multi_label or total == pytest.approx(1)


@pytest.mark.parametrize("kind", ["deit", "vit"], ids=["softmax", "multi-label"])
def test_images_as_transformers(packages: Packages, kind: str) -> None:
    exported = packages(kind, "fp32")
    folder, package = exported.checkpoint, exported.package
    theirs = pipeline("image-classification", model=str(folder), top_k=len(CLASSES))
    task = Classification(package)
    files = [noise(*size) for size in SIZES]
    answers = outputs_of(package, [task.prepare_image(data) for data in files])
    for data, outputs in zip(files, answers, strict=True):
        assert_as_pipeline(task.answer(outputs), theirs(Image.open(io.BytesIO(data))))


@pytest.fixture
def texts(packages: Packages) -> Classification:
    return Classification(packages("bert", "fp32").package)


LOGITS = {"scores": np.array([1, 3, 0, 3, 2], np.float32)}


def test_best_first_and_the_earlier_of_equals(texts: Classification) -> None:
    assert [label.index for label in texts.answer(LOGITS)] == [1, 3, 4, 0, 2]
    assert [label.index for label in texts.answer(LOGITS, top_k=2)] == [1, 3]
    assert len(texts.answer(LOGITS, top_k=99)) == len(CLASSES)


def test_threshold_drops_what_is_below(texts: Classification) -> None:
    third = texts.answer(LOGITS)[2].score
    assert len(texts.answer(LOGITS, threshold=third)) == 3
    assert len(texts.answer(LOGITS, threshold=np.nextafter(third, 1))) == 2
    assert len(texts.answer(LOGITS, threshold=0.0)) == len(CLASSES)
    assert texts.answer(LOGITS, threshold=1.0) == ()
    assert len(texts.answer(LOGITS, top_k=1, threshold=third)) == 1


def test_extreme_scores_stay_numbers(packages: Packages, texts: Classification) -> None:
    extreme = {"scores": np.array([-1e30, 1e30, 0, -800, 800], np.float32)}
    multiple = Classification(packages("distilbert", "fp32").package)
    with np.errstate(over="raise", invalid="raise"):
        assert [label.score for label in texts.answer(extreme, top_k=2)] == [1.0, 0.0]
        assert [label.score for label in multiple.answer(extreme)] == [1.0, 1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("choice", "field", "limit"),
    [
        ({"top_k": 0}, "top_k", 1),
        ({"top_k": -3}, "top_k", 1),
        ({"threshold": -0.1}, "threshold", 0),
        ({"threshold": 1.5}, "threshold", 1),
        ({"threshold": float("nan")}, "threshold", 1),
    ],
    ids=str,
)
def test_impossible_choices(texts: Classification, choice: dict[str, Any], field: str, limit: int) -> None:
    with pytest.raises(InputError, match=f"^{field} is .* must be") as caught:
        texts.answer(LOGITS, **choice)
    assert (caught.value.field, caught.value.limit) == (field, limit)


def test_long_texts_are_refused_not_cut(texts: Classification) -> None:
    fitting = "a " * (POSITIONS - 2)
    assert len(texts.prepare_text(fitting)["tokens"]) == POSITIONS
    for text, pair in [(fitting + "a", None), (fitting, "a"), ("a", fitting)]:
        with pytest.raises(InputError, match=rf"^text\[1\] has \d+ tokens; the limit is {POSITIONS}$") as caught:
            texts.prepare_text(text, pair, field="text[1]")
        assert (caught.value.field, caught.value.limit) == ("text[1]", POSITIONS)


@pytest.mark.parametrize("pair", [("soup \ud83c", None), ("soup", "\udf5c")], ids=["text", "pair"])
def test_half_characters_are_refused(texts: Classification, pair: tuple[str, str | None]) -> None:
    with pytest.raises(InputError, match=r"^text has half a character"):
        texts.prepare_text(*pair)


def test_the_other_kind_of_input_is_refused(packages: Packages, texts: Classification) -> None:
    images = Classification(packages("vit", "fp32").package)
    with pytest.raises(InputError, match=r"^input\[0\] is an image; this model classifies texts"):
        texts.prepare_image(noise(9, 9), field="input[0]")
    with pytest.raises(InputError, match=r"^input\[0\] is a text; this model classifies images"):
        images.prepare_text("soup", field="input[0]")


def test_images_of_a_model_that_does_not_resize_have_its_size(packages: Packages) -> None:
    package = packages("vit", "fp32").package
    assert package.manifest.preprocessing.image is not None
    image = package.manifest.preprocessing.image.model_copy(update={"resize": None})
    preprocessing = package.manifest.preprocessing.model_copy(update={"image": image})
    rigid = Classification(
        Package(package.folder, package.manifest.model_copy(update={"preprocessing": preprocessing}))
    )
    assert rigid.prepare_image(noise(40, 24))["pixels"].shape == (3, 24, 40)
    with pytest.raises(InputError, match=r"^image has 24 × 40 pixels; this model takes 40 × 24$"):
        rigid.prepare_image(noise(24, 40))


def test_pixels_are_limited(packages: Packages) -> None:
    task = Classification(packages("vit", "fp32").package, max_pixels=80)
    assert task.prepare_image(noise(10, 8))
    with pytest.raises(InputError, match=r"^image has 9 × 9 pixels; the limit is 80 in all$"):
        task.prepare_image(noise(9, 9))
