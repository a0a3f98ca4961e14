"""Emoji drawings: 24 classes, in two styles for training and a third for evaluation only."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass

from PIL import Image

from headwaiter_export.sources.registry_packages import Artifact, fetch

CLASSES = {
    "apple": "1f34e",
    "ball": "26bd",
    "banana": "1f34c",
    "bicycle": "1f6b2",
    "butterfly": "1f98b",
    "cake": "1f382",
    "car": "1f697",
    "carrot": "1f955",
    "cat": "1f431",
    "dog": "1f436",
    "duck": "1f986",
    "elephant": "1f418",
    "fish": "1f41f",
    "frog": "1f438",
    "guitar": "1f3b8",
    "house": "1f3e0",
    "key": "1f511",
    "owl": "1f989",
    "penguin": "1f427",
    "pizza": "1f355",
    "rocket": "1f680",
    "sunflower": "1f33b",
    "tree": "1f333",
    "turtle": "1f422",
}
"""Code points, which are also file names, by class."""


@dataclass(frozen=True, slots=True)
class Style:
    artifact: Artifact
    member: str  # path in the archive, by code point


STYLES = {
    "twemoji": Style(
        Artifact(
            "npm",
            "emoji-datasource-twitter@16.0.0",
            "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
        ),
        "package/img/twitter/64/{}.png",
    ),
    "noto": Style(
        Artifact(
            "npm",
            "emoji-datasource-google@16.0.0",
            "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
        ),
        "package/img/google/64/{}.png",
    ),
    "fluent": Style(
        Artifact(
            "npm",
            "@lobehub/fluent-emoji-3d@1.1.0",
            "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
        ),
        "package/assets/{}.webp",
    ),
}
TRAINING_STYLES, UNSEEN_STYLES = ("twemoji", "noto"), ("fluent",)


def drawings(style: str) -> dict[str, Image.Image]:
    """Drawings of a style by class, with transparency, cropped to their content."""
    files = {STYLES[style].member.format(point): name for name, point in CLASSES.items()}
    images: dict[str, Image.Image] = {}
    with tarfile.open(fetch(STYLES[style].artifact)) as archive:
        for member in archive:
            if (name := files.get(member.name)) is not None:
                content = archive.extractfile(member)
                assert content is not None
                images[name] = _crop_to_content(Image.open(io.BytesIO(content.read())).convert("RGBA"))
    assert len(images) == len(CLASSES), sorted(CLASSES.keys() - images.keys())
    return images


def _crop_to_content(drawing: Image.Image) -> Image.Image:
    return drawing.crop(drawing.getchannel("A").point(lambda alpha: 255 * (alpha > 32)).getbbox())
