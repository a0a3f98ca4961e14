"""Operations of a service. Each builds a call; the sync and async clients turn them into methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from google.protobuf.message import Message

from headwaiter.client import requests, responses
from headwaiter.client.call import Call, Decoding, EpisodeCall, Options, StreamCall
from headwaiter.client.episode_replay import EpisodeReplay
from headwaiter.client.errors import InvalidInput
from headwaiter.client.protocol import CATALOG, require_method
from headwaiter.client.requests import FileLike, History, ImageLike, Step, TextLike, as_list, is_batch, set_fields
from headwaiter.client.results import (
    Action,
    ClassificationResult,
    Description,
    DetectionResult,
    GeneratedImages,
    GeneratedText,
    ModelSummary,
)
from headwaiter.v1 import captioning_pb2, classification_pb2, detection_pb2, generation_pb2, models_pb2, policy_pb2
from headwaiter.v1 import translation_pb2 as translation

Item = TypeVar("Item")
Many = list[Item] | tuple[Item, ...]


@overload
def translate(
    model: str,
    text: str,
    *,
    source_language: str | None = ...,
    target_language: str | None = ...,
    split: bool | None = ...,
    **decoding: Unpack[Decoding],
) -> Call[GeneratedText]: ...
@overload
def translate(
    model: str,
    text: Many[str],
    *,
    source_language: str | None = ...,
    target_language: str | None = ...,
    split: bool | None = ...,
    **decoding: Unpack[Decoding],
) -> Call[list[GeneratedText]]: ...
def translate(
    model: str,
    text: str | Many[str],
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    split: bool | None = None,
    **decoding: Unpack[Decoding],
) -> Call[Any]:
    """Translate a text or a list of texts. `split=False` treats each text as one sentence."""
    options, parameters = _split_options(decoding)
    values = {
        "source_language": source_language,
        "target_language": target_language,
        "split": split,
        "decoding": parameters,
    }
    request = set_fields(translation.TranslateRequest(text=requests.texts(text, "text")), values)
    return Call(model, "Translate", request, _results(responses.generated_text, many=is_batch(text)), options)


def translate_stream(
    model: str,
    text: str,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    split: bool | None = None,
    **decoding: Unpack[Decoding],
) -> StreamCall:
    """Translate a text and stream the translation."""
    options, parameters = _split_options(decoding)
    values = {
        "source_language": source_language,
        "target_language": target_language,
        "split": split,
        "decoding": parameters,
    }
    request = set_fields(translation.TranslateStreamRequest(text=requests.text(text, "text")), values)
    return StreamCall(model, "TranslateStream", request, options)


@overload
def caption(
    model: str, image: ImageLike, *, prompt: str | None = ..., **decoding: Unpack[Decoding]
) -> Call[GeneratedText]: ...
@overload
def caption(
    model: str, image: Many[ImageLike], *, prompt: str | None = ..., **decoding: Unpack[Decoding]
) -> Call[list[GeneratedText]]: ...
def caption(
    model: str, image: ImageLike | Many[ImageLike], *, prompt: str | None = None, **decoding: Unpack[Decoding]
) -> Call[Any]:
    """Caption an image or a list of images; `prompt` is the beginning of each caption."""
    options, parameters = _split_options(decoding)
    images = requests.images(image)
    request = set_fields(captioning_pb2.CaptionRequest(image=images), {"prompt": prompt, "decoding": parameters})
    return Call(model, "Caption", request, _results(responses.generated_text, many=is_batch(image)), options)


def caption_stream(
    model: str, image: ImageLike, *, prompt: str | None = None, **decoding: Unpack[Decoding]
) -> StreamCall:
    """Caption an image and stream the caption."""
    options, parameters = _split_options(decoding)
    request = captioning_pb2.CaptionStreamRequest(image=requests.image(image))
    return StreamCall(model, "CaptionStream", set_fields(request, {"prompt": prompt, "decoding": parameters}), options)


@overload
def classify(
    model: str,
    input: TextLike | FileLike,
    *,
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[ClassificationResult]: ...
@overload
def classify(
    model: str,
    input: list[str] | list[TextLike] | list[Path] | list[bytes] | list[FileLike],
    *,
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[list[ClassificationResult]]: ...
@overload
def classify(
    model: str,
    *,
    text: str | tuple[str, str],
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[ClassificationResult]: ...
@overload
def classify(
    model: str,
    *,
    text: list[str] | list[tuple[str, str]],
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[list[ClassificationResult]]: ...
@overload
def classify(
    model: str,
    *,
    image: ImageLike,
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[ClassificationResult]: ...
@overload
def classify(
    model: str,
    *,
    image: Many[ImageLike],
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[list[ClassificationResult]]: ...
def classify(
    model: str,
    input: Any = None,  # noqa: A002
    *,
    text: Any = None,
    image: Any = None,
    top_k: int | None = None,
    threshold: float | None = None,
    **options: Unpack[Options],
) -> Call[Any]:
    """Classify a text, a pair of texts (as a tuple) or an image, or a list of them.

    In `input`, a string is a text; a path object, bytes, an open file or a PIL image is an image. `text` and `image`
    say it explicitly; in `image`, a string is a path.
    """
    values = {"input": input, "text": text, "image": image}
    present = [name for name, value in values.items() if value is not None]
    if len(present) != 1:
        raise InvalidInput("exactly one of input, text and image is required", field="input")
    (name,) = present
    value = values[name]
    many = is_batch(value) if name == "image" else isinstance(value, list)  # a tuple of texts is a pair
    build = {"input": requests.any_input, "text": requests.text_input, "image": requests.image_input}[name]
    items = value if many else [value]
    inputs = [build(item, f"{name}[{index}]" if many else name) for index, item in enumerate(items)]
    request = set_fields(classification_pb2.ClassifyRequest(input=inputs), {"top_k": top_k, "threshold": threshold})
    return Call(model, "Classify", request, _results(responses.classification, many=many), options)


@overload
def detect(
    model: str,
    image: ImageLike,
    *,
    threshold: float | None = ...,
    max_boxes: int | None = ...,
    **options: Unpack[Options],
) -> Call[DetectionResult]: ...
@overload
def detect(
    model: str,
    image: Many[ImageLike],
    *,
    threshold: float | None = ...,
    max_boxes: int | None = ...,
    **options: Unpack[Options],
) -> Call[list[DetectionResult]]: ...
def detect(
    model: str,
    image: ImageLike | Many[ImageLike],
    *,
    threshold: float | None = None,
    max_boxes: int | None = None,
    **options: Unpack[Options],
) -> Call[Any]:
    """Detect objects in an image or a list of images; boxes are in pixels of the image."""
    images = requests.images(image)
    request = set_fields(detection_pb2.DetectRequest(image=images), {"threshold": threshold, "max_boxes": max_boxes})
    return Call(model, "Detect", request, _results(responses.detection, many=is_batch(image)), options)


@overload
def act(
    model: str, history: History, *, greedy: bool | None = ..., seed: int | None = ..., **options: Unpack[Options]
) -> Call[Action]: ...
@overload
def act(
    model: str,
    history: Many[History],
    *,
    greedy: bool | None = ...,
    seed: int | None = ...,
    **options: Unpack[Options],
) -> Call[list[Action]]: ...
def act(
    model: str,
    history: History | Many[History],
    *,
    greedy: bool | None = None,
    seed: int | None = None,
    **options: Unpack[Options],
) -> Call[Any]:
    """Return the next action after a history or a list of histories. For whole episodes, `episode` is faster."""
    histories = [requests.history(item) for item in as_list(history)]
    request = set_fields(policy_pb2.ActRequest(history=histories), {"greedy": greedy, "seed": seed})
    return Call(model, "Act", request, _results(responses.action, many=is_batch(history)), options)


def episode(
    model: str,
    *,
    target_return: float,
    greedy: bool | None = None,
    seed: int | None = None,
    history: Sequence[Step] = (),
    **options: Unpack[Options],
) -> EpisodeCall:
    """Start an episode. `timeout` applies to each step; `history` continues an earlier episode."""
    start = set_fields(policy_pb2.Start(), {"target_return": target_return, "greedy": greedy, "seed": seed})
    return EpisodeCall(model, EpisodeReplay(start, history), options)


@overload
def generate(model: str, prompt: str, **decoding: Unpack[Decoding]) -> Call[GeneratedText]: ...
@overload
def generate(model: str, prompt: Many[str], **decoding: Unpack[Decoding]) -> Call[list[GeneratedText]]: ...
def generate(model: str, prompt: str | Many[str], **decoding: Unpack[Decoding]) -> Call[Any]:
    """Continue a prompt or a list of prompts."""
    options, parameters = _split_options(decoding)
    prompts = requests.texts(prompt, "prompt")
    request = set_fields(generation_pb2.GenerateRequest(prompt=prompts), {"decoding": parameters})
    return Call(model, "Generate", request, _results(responses.generated_text, many=is_batch(prompt)), options)


def generate_stream(model: str, prompt: str, **decoding: Unpack[Decoding]) -> StreamCall:
    """Continue a prompt and stream the continuation."""
    options, parameters = _split_options(decoding)
    request = generation_pb2.GenerateStreamRequest(prompt=requests.text(prompt, "prompt"))
    set_fields(request, {"decoding": parameters})
    return StreamCall(model, "GenerateStream", request, options)


def generate_images(
    model: str, *, count: int | None = None, seed: int | None = None, **options: Unpack[Options]
) -> Call[GeneratedImages]:
    """Generate `count` images (default: 1)."""
    request = set_fields(generation_pb2.GenerateImagesRequest(), {"count": count, "seed": seed})
    return Call(model, "GenerateImages", request, responses.images, options)


def models(**options: Unpack[Options]) -> Call[list[ModelSummary]]:
    """List the served models."""
    return Call(CATALOG, "ListModels", models_pb2.ListModelsRequest(), responses.models, options)


def describe(model: str, **options: Unpack[Options]) -> Call[Description]:
    """Describe a model: task, limits, labels and defaults."""
    return Call(model, "Describe", models_pb2.DescribeRequest(), responses.description, options)


def call(model: str, method: str, fields: Mapping[str, Any], **options: Unpack[Options]) -> Call[Message]:
    """Call any unary method, also of a task that another distribution adds, and return its response message.

    `fields` are those of the request, as in its .proto file: values or lists of them, images as everywhere in this
    client, messages or dicts for nested messages.
    """
    description = require_method(method)
    if description.client_streaming or description.server_streaming:
        raise InvalidInput(f"{method} is a stream; call takes methods with one response", field="method")
    return Call(model, method, requests.from_fields(description.request(), fields), _unparsed, options)


def _unparsed(reply: Message) -> Message:
    return reply


def _split_options(decoding: Decoding) -> tuple[Options, Any]:
    """Separate the options of a call from its decoding parameters, which are returned as a message."""
    options: Any = {name: value for name, value in decoding.items() if name in Options.__annotations__}
    parameters = {name: value for name, value in decoding.items() if name not in Options.__annotations__}
    return options, requests.decoding(parameters)


def _results(parse: Callable[[Any, responses.CommonFields], Item], *, many: bool) -> Callable[[Any], Any]:
    """Return a parser that gives a list if `many`, else the only result."""

    def parse_all(reply: Any) -> list[Item] | Item:
        common = responses.common_fields(reply)
        results = [parse(result, common) for result in reply.results]
        return results if many else results[0]

    return parse_all
