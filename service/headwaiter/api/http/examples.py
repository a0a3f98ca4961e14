"""Example request bodies for the OpenAPI document; the model accepts each of them."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

from headwaiter.protocol.methods import Method, methods_of
from headwaiter.protocol.tasks import resolve, task_specs
from headwaiter.v1.common_pb2 import Image as ImageMessage
from headwaiter.v1.models_pb2 import DescribeResponse

_DEFAULT_SIDE = 64  # pixels, for models that accept any image size
_EXAMPLE_TEXTS = {
    "zh": "服务器崩溃了，请稍后再试。",
    "de": "Der Server ist abgestürzt, bitte versuchen Sie es später noch einmal.",
    "fr": "Le serveur est tombé en panne, veuillez réessayer plus tard.",
    "es": "El servidor se ha caído, inténtelo más tarde.",
}
_DEFAULT_EXAMPLE_TEXT = "The server has crashed; please try again later."


def example(method: Method, description: DescribeResponse) -> dict[str, Any]:
    """Return a request body: that of the task, or one with the first field of the request."""
    for spec in task_specs().values():
        if spec.request_examples and method in methods_of(spec.load_stubs()):
            body: dict[str, Any] | None = resolve(spec.request_examples)(method.name, description)
            if body is not None:
                return body
    return _derive(method, description)


def reads_text(description: DescribeResponse) -> bool:
    """Whether a classifier takes texts; only those have a `length` limit."""
    return "length" in description.limits


def translation(_: str, description: DescribeResponse) -> dict[str, Any]:
    source, target = list(description.languages.source), list(description.languages.target)
    body = {"text": [_EXAMPLE_TEXTS.get(source[0], _DEFAULT_EXAMPLE_TEXT) if source else _DEFAULT_EXAMPLE_TEXT]}
    languages = {"source_language": source, "target_language": target}
    return body | {name: supported[0] for name, supported in languages.items() if len(supported) > 1}


def classification(_: str, description: DescribeResponse) -> dict[str, Any]:
    inputs = {"text": "Dinner was late, and worth the wait."} if reads_text(description) else _image(description)
    return inputs | {"top_k": 3}


def detection(_: str, description: DescribeResponse) -> dict[str, Any]:
    return _image(description) | {"threshold": 0.3}


def policy(_: str, description: DescribeResponse) -> dict[str, Any]:
    return {"history": {"steps": [{"state": [0.0] * description.state_size}], "target_return": 1.0}}


def generation(method: str, _: DescribeResponse) -> dict[str, Any] | None:
    return {"prompt": "Once upon a time"} if method == "Generate" else None


def image_generation(method: str, _: DescribeResponse) -> dict[str, Any] | None:
    return {"count": 1, "seed": 7} if method == "GenerateImages" else None


def _derive(method: Method, description: DescribeResponse) -> dict[str, Any]:
    """Set the first field of the request, if it takes texts or images."""
    fields = method.request.DESCRIPTOR.fields
    if not fields:
        return {}
    first = fields[0]
    if first.message_type is not None:
        is_image = first.message_type.full_name == ImageMessage.DESCRIPTOR.full_name
        return {first.name: _image(description)["image"]} if is_image else {}
    return {first.name: _DEFAULT_EXAMPLE_TEXT} if first.type == first.TYPE_STRING else {}


def _image(description: DescribeResponse) -> dict[str, Any]:
    file, limits = io.BytesIO(), description.limits
    size = limits.get("width", _DEFAULT_SIDE), limits.get("height", _DEFAULT_SIDE)
    Image.new("RGB", size, "teal").save(file, "PNG", optimize=True)
    return {"image": base64.b64encode(file.getvalue()).decode()}
