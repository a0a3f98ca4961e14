"""Labels and scores match the pipelines of transformers."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import pipeline

from headwaiter.engine.batcher import Batcher, ForwardJob
from headwaiter.engine.session import Arrays, Session
from headwaiter.package.manifest import Package
from headwaiter.tasks.classification import Classification, Label, Options
from headwaiter.tasks.errors import InputError
from tests.checkpoints_kit import CLASSES, POSITIONS
from tests.conftest import Packages
from tests.images_kit import random_png
from tests.task_kit import open_task
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


def run_model(package: Package, inputs: list[Arrays]) -> list[Arrays]:
    batcher = Batcher(Session(package, threads=1))
    batcher.start()
    jobs = [ForwardJob(arrays) for arrays in inputs]
    for job in jobs:
        batcher.submit(job)
    outputs = [job.future.result(60).outputs for job in jobs]
    batcher.close()
    return outputs


def assert_same_labels(labels: tuple[Label, ...], expected: list[dict[str, Any]]) -> None:
    assert [label.name for label in labels] == [item["label"] for item in expected]
    assert [label.score for label in labels] == pytest.approx([item["score"] for item in expected], abs=2e-6)
    assert all(CLASSES[label.index] == label.name for label in labels)


@pytest.mark.parametrize("kind", ["bert", "distilbert"], ids=["softmax, segments", "multi-label"])
def test_classify_text_matches_transformers(packages: Packages, kind: str) -> None:
    exported = packages(kind, "fp32")
    folder, package = exported.checkpoint, exported.package
    reference = pipeline("text-classification", model=str(folder), top_k=None)
    task = open_task(Classification, package)
    results = run_model(package, [task.prepare_text(*pair) for pair in PAIRS])
    for (text, pair), outputs in zip(PAIRS, results, strict=True):
        expected = reference({"text": text, "text_pair": pair} if pair else {"text": text})
        assert_same_labels(task.postprocess(outputs), expected)
        total = sum(label.score for label in task.postprocess(outputs))
        assert package.manifest.multi_label or total == pytest.approx(1)


@pytest.mark.parametrize("kind", ["deit", "vit"], ids=["softmax", "multi-label"])
def test_classify_image_matches_transformers(packages: Packages, kind: str) -> None:
    exported = packages(kind, "fp32")
    folder, package = exported.checkpoint, exported.package
    reference = pipeline("image-classification", model=str(folder), top_k=len(CLASSES))
    task = open_task(Classification, package)
    files = [random_png(*size) for size in SIZES]
    results = run_model(package, [task.prepare_image(data) for data in files])
    for data, outputs in zip(files, results, strict=True):
        assert_same_labels(task.postprocess(outputs), reference(Image.open(io.BytesIO(data))))


@pytest.fixture
def classifier(packages: Packages) -> Classification:
    return open_task(Classification, packages("bert", "fp32").package)


LOGITS = {"scores": np.array([1, 3, 0, 3, 2], np.float32)}


def test_postprocess_sorts_by_score_then_index(classifier: Classification) -> None:
    assert [label.index for label in classifier.postprocess(LOGITS)] == [1, 3, 4, 0, 2]
    assert [label.index for label in classifier.postprocess(LOGITS, options=Options(top_k=2))] == [1, 3]
    assert len(classifier.postprocess(LOGITS, options=Options(top_k=99))) == len(CLASSES)


def test_postprocess_threshold_drops_lower_scores(classifier: Classification) -> None:
    third = classifier.postprocess(LOGITS)[2].score
    assert len(classifier.postprocess(LOGITS, options=Options(threshold=third))) == 3
    assert len(classifier.postprocess(LOGITS, options=Options(threshold=np.nextafter(third, 1)))) == 2
    assert len(classifier.postprocess(LOGITS, options=Options(threshold=0.0))) == len(CLASSES)
    assert classifier.postprocess(LOGITS, options=Options(threshold=1.0)) == ()
    assert len(classifier.postprocess(LOGITS, options=Options(top_k=1, threshold=third))) == 1


def test_postprocess_extreme_logits_gives_finite_scores(packages: Packages, classifier: Classification) -> None:
    extreme = {"scores": np.array([-1e30, 1e30, 0, -800, 800], np.float32)}
    multi_label = open_task(Classification, packages("distilbert", "fp32").package)
    with np.errstate(over="raise", invalid="raise"):
        assert [label.score for label in classifier.postprocess(extreme, options=Options(top_k=2))] == [1.0, 0.0]
        assert [label.score for label in multi_label.postprocess(extreme)] == [1.0, 1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "field", "limit"),
    [
        ({"top_k": 0}, "top_k", 1),
        ({"top_k": -3}, "top_k", 1),
        ({"threshold": -0.1}, "threshold", 0),
        ({"threshold": 1.5}, "threshold", 1),
        ({"threshold": float("nan")}, "threshold", 1),
    ],
    ids=str,
)
def test_postprocess_invalid_option_is_rejected(
    classifier: Classification, options: dict[str, Any], field: str, limit: int
) -> None:
    with pytest.raises(InputError, match=f"^{field} is .* must be") as caught:
        classifier.postprocess(LOGITS, options=Options(**options))
    assert (caught.value.field, caught.value.limit) == (field, limit)


def test_prepare_text_too_many_tokens_is_rejected(classifier: Classification) -> None:
    longest = "a " * (POSITIONS - 2)
    assert len(classifier.prepare_text(longest)["tokens"]) == POSITIONS
    for text, pair in [(longest + "a", None), (longest, "a"), ("a", longest)]:
        with pytest.raises(InputError, match=rf"^text\[1\] has \d+ tokens; the limit is {POSITIONS}$") as caught:
            classifier.prepare_text(text, pair, field="text[1]")
        assert (caught.value.field, caught.value.limit) == ("text[1]", POSITIONS)


@pytest.mark.parametrize("pair", [("soup \ud83c", None), ("soup", "\udf5c")], ids=["text", "pair"])
def test_prepare_text_lone_surrogate_is_rejected(classifier: Classification, pair: tuple[str, str | None]) -> None:
    with pytest.raises(InputError, match=r"^text has a lone surrogate"):
        classifier.prepare_text(*pair)


def test_prepare_wrong_input_kind_is_rejected(packages: Packages, classifier: Classification) -> None:
    images = open_task(Classification, packages("vit", "fp32").package)
    with pytest.raises(InputError, match=r"^input\[0\] is an image"):
        classifier.prepare_image(random_png(9, 9), field="input[0]")
    with pytest.raises(InputError, match=r"^input\[0\] is a text"):
        images.prepare_text("soup", field="input[0]")


def test_prepare_image_without_resize_requires_fixed_size(packages: Packages) -> None:
    package = packages("vit", "fp32").package
    assert package.manifest.preprocessing.image is not None
    image = package.manifest.preprocessing.image.model_copy(update={"resize": None})
    preprocessing = package.manifest.preprocessing.model_copy(update={"image": image})
    task = open_task(
        Classification, Package(package.folder, package.manifest.model_copy(update={"preprocessing": preprocessing}))
    )
    assert task.prepare_image(random_png(40, 24))["pixels"].shape == (3, 24, 40)
    with pytest.raises(InputError, match=r"^image has 24 × 40 pixels; .* 40 × 24$"):
        task.prepare_image(random_png(24, 40))


def test_prepare_image_too_many_pixels_is_rejected(packages: Packages) -> None:
    task = open_task(Classification, packages("vit", "fp32").package, limits={"pixels": 80})
    assert task.prepare_image(random_png(10, 8))
    with pytest.raises(InputError, match=r"^image has 9 × 9 pixels; the limit is 80 "):
        task.prepare_image(random_png(9, 9))
