"""Emoji as artists drew them: 24 kinds, in two styles to learn from and a third to be measured on."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass

from PIL import Image

from export.packages import Parcel, fetch

KINDS = {
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
"""Names, and the code points that name the files."""


@dataclass(frozen=True, slots=True)
class Style:
    parcel: Parcel
    member: str  # of the archive, by code point


STYLES = {
    "twemoji": Style(
        Parcel(
            "npm",
            "emoji-datasource-twitter@16.0.0",
            "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
        ),
        "package/img/twitter/64/{}.png",
    ),
    "noto": Style(
        Parcel(
            "npm",
            "emoji-datasource-google@16.0.0",
            "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
        ),
        "package/img/google/64/{}.png",
    ),
    "fluent": Style(
        Parcel(
            "npm",
            "@lobehub/fluent-emoji-3d@1.1.0",
            "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
        ),
        "package/assets/{}.webp",
    ),
}
LEARNED, UNSEEN = ("twemoji", "noto"), ("fluent",)


def drawings(style: str) -> dict[str, Image.Image]:
    """Of each kind, with transparency, cut to what is drawn."""
    files = {STYLES[style].member.format(point): kind for kind, point in KINDS.items()}
    found: dict[str, Image.Image] = {}
    with tarfile.open(fetch(STYLES[style].parcel)) as archive:
        for member in archive:
            if (kind := files.get(member.name)) is not None:
                content = archive.extractfile(member)
                assert content is not None
                found[kind] = _cut(Image.open(io.BytesIO(content.read())).convert("RGBA"))
    assert len(found) == len(KINDS), sorted(KINDS.keys() - found.keys())
    return found


def _cut(drawing: Image.Image) -> Image.Image:
    return drawing.crop(drawing.getchannel("A").point(lambda alpha: 255 * (alpha > 32)).getbbox())
