"""Bodies that a model can answer, for its documentation."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

from PIL import Image

from headwaiter.v1.models_pb2 import DescribeResponse

_SIDE = 64  # pixels, where a model takes any size
_GREETINGS = {
    "zh": "服务器崩溃了，请稍后再试。",
    "de": "Der Server ist abgestürzt, bitte versuchen Sie es später noch einmal.",
    "fr": "Le serveur est tombé en panne, veuillez réessayer plus tard.",
    "es": "El servidor se ha caído, inténtelo más tarde.",
}
_ENGLISH = "The server has crashed; please try again later."


def example(method: str, about: DescribeResponse) -> dict[str, Any]:
    return _EXAMPLES[method](about)


def reads_text(about: DescribeResponse) -> bool:
    """Whether a classifier's inputs are texts: only those have a length."""
    return "length" in about.limits


def _translate(about: DescribeResponse) -> dict[str, Any]:
    source, target = list(about.languages.source), list(about.languages.target)
    body = {"text": [_GREETINGS.get(source[0], _ENGLISH) if source else _ENGLISH]}
    stated = {"source_language": source, "target_language": target}
    return body | {name: known[0] for name, known in stated.items() if len(known) > 1}


def _classify(about: DescribeResponse) -> dict[str, Any]:
    inputs = {"text": "Dinner was late, and worth the wait."} if reads_text(about) else _image(about)
    return inputs | {"top_k": 3}


def _act(about: DescribeResponse) -> dict[str, Any]:
    return {"history": {"steps": [{"state": [0.0] * about.state_size}], "target_return": 1.0}}


def _image(about: DescribeResponse) -> dict[str, Any]:
    file, limits = io.BytesIO(), about.limits
    size = limits.get("width", _SIDE), limits.get("height", _SIDE)
    Image.new("RGB", size, "teal").save(file, "PNG", optimize=True)
    return {"image": base64.b64encode(file.getvalue()).decode()}


_EXAMPLES: dict[str, Callable[[DescribeResponse], dict[str, Any]]] = {
    "Translate": _translate,
    "Caption": _image,
    "Classify": _classify,
    "Detect": lambda about: _image(about) | {"threshold": 0.3},
    "Act": _act,
    "Generate": lambda _: {"prompt": "Once upon a time"},
    "GenerateImages": lambda _: {"count": 1, "seed": 7},
}
