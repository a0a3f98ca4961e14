"""Example request bodies for the OpenAPI document; the model accepts each of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

from PIL import Image

from headwaiter.v1.models_pb2 import DescribeResponse

_DEFAULT_SIDE = 64  # pixels, for models that accept any image size
_EXAMPLE_TEXTS = {
    "zh": "服务器崩溃了，请稍后再试。",
    "de": "Der Server ist abgestürzt, bitte versuchen Sie es später noch einmal.",
    "fr": "Le serveur est tombé en panne, veuillez réessayer plus tard.",
    "es": "El servidor se ha caído, inténtelo más tarde.",
}
_DEFAULT_EXAMPLE_TEXT = "The server has crashed; please try again later."


def example(method: str, description: DescribeResponse) -> dict[str, Any]:
    return _EXAMPLES[method](description)


def reads_text(description: DescribeResponse) -> bool:
    """Whether a classifier takes texts; only those have a `length` limit."""
    return "length" in description.limits


def _translate(description: DescribeResponse) -> dict[str, Any]:
    source, target = list(description.languages.source), list(description.languages.target)
    body = {"text": [_EXAMPLE_TEXTS.get(source[0], _DEFAULT_EXAMPLE_TEXT) if source else _DEFAULT_EXAMPLE_TEXT]}
    languages = {"source_language": source, "target_language": target}
    return body | {name: supported[0] for name, supported in languages.items() if len(supported) > 1}


def _classify(description: DescribeResponse) -> dict[str, Any]:
    inputs = {"text": "Dinner was late, and worth the wait."} if reads_text(description) else _image(description)
    return inputs | {"top_k": 3}


def _act(description: DescribeResponse) -> dict[str, Any]:
    return {"history": {"steps": [{"state": [0.0] * description.state_size}], "target_return": 1.0}}


def _image(description: DescribeResponse) -> dict[str, Any]:
    file, limits = io.BytesIO(), description.limits
    size = limits.get("width", _DEFAULT_SIDE), limits.get("height", _DEFAULT_SIDE)
    Image.new("RGB", size, "teal").save(file, "PNG", optimize=True)
    return {"image": base64.b64encode(file.getvalue()).decode()}


_EXAMPLES: dict[str, Callable[[DescribeResponse], dict[str, Any]]] = {
    "Translate": _translate,
    "Caption": _image,
    "Classify": _classify,
    "Detect": lambda description: _image(description) | {"threshold": 0.3},
    "Act": _act,
    "Generate": lambda _: {"prompt": "Once upon a time"},
    "GenerateImages": lambda _: {"count": 1, "seed": 7},
}
