"""What can be asked, each verb once: the sync and the async client make their methods of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from headwaiter.v1 import captioning_pb2, classification_pb2, detection_pb2, generation_pb2, models_pb2, policy_pb2
from headwaiter.v1 import translation_pb2 as translation
from service.client import answers, requests
from service.client.call import Call, Decoding, EpisodeCall, Options, StreamCall
from service.client.errors import InvalidInput
from service.client.requests import History, Picture, Step, fill, is_many, listed
from service.client.results import Action, Classified, Description, Detected, GeneratedImages, ModelSummary, Words
from service.client.script import Script

CATALOG = "catalog"

Each = TypeVar("Each")
Many = list[Each] | tuple[Each, ...]


@overload
def translate(
    model: str,
    text: str,
    *,
    source_language: str | None = ...,
    target_language: str | None = ...,
    split: bool | None = ...,
    **decoding: Unpack[Decoding],
) -> Call[Words]: ...
@overload
def translate(
    model: str,
    text: Many[str],
    *,
    source_language: str | None = ...,
    target_language: str | None = ...,
    split: bool | None = ...,
    **decoding: Unpack[Decoding],
) -> Call[list[Words]]: ...
def translate(
    model: str,
    text: str | Many[str],
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    split: bool | None = None,
    **decoding: Unpack[Decoding],
) -> Call[Any]:
    """Translates a text, or each of several. `split=False` takes a text as one sentence."""
    options, how = _apart(decoding)
    values = {"source_language": source_language, "target_language": target_language, "split": split, "decoding": how}
    request = fill(translation.TranslateRequest(), {"text": listed(text), **values})
    return Call(model, "Translate", request, _results(answers.words, many=is_many(text)), options)


def translate_stream(
    model: str,
    text: str,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    split: bool | None = None,
    **decoding: Unpack[Decoding],
) -> StreamCall:
    """Translates a text and gives the pieces as they fall."""
    options, how = _apart(decoding)
    values = {"source_language": source_language, "target_language": target_language, "split": split, "decoding": how}
    request = fill(translation.TranslateStreamRequest(), {"text": text, **values})
    return StreamCall(model, "TranslateStream", request, options)


@overload
def caption(model: str, image: Picture, *, prompt: str | None = ..., **decoding: Unpack[Decoding]) -> Call[Words]: ...
@overload
def caption(
    model: str, image: Many[Picture], *, prompt: str | None = ..., **decoding: Unpack[Decoding]
) -> Call[list[Words]]: ...
def caption(
    model: str, image: Picture | Many[Picture], *, prompt: str | None = None, **decoding: Unpack[Decoding]
) -> Call[Any]:
    """Describes an image, or each of several; `prompt` is how each caption begins."""
    options, how = _apart(decoding)
    images = [requests.image(each) for each in listed(image)]
    request = fill(captioning_pb2.CaptionRequest(image=images), {"prompt": prompt, "decoding": how})
    return Call(model, "Caption", request, _results(answers.words, many=is_many(image)), options)


def caption_stream(
    model: str, image: Picture, *, prompt: str | None = None, **decoding: Unpack[Decoding]
) -> StreamCall:
    """Describes an image and gives the words as they fall."""
    options, how = _apart(decoding)
    request = captioning_pb2.CaptionStreamRequest(image=requests.image(image))
    return StreamCall(model, "CaptionStream", fill(request, {"prompt": prompt, "decoding": how}), options)


@overload
def classify(
    model: str,
    *,
    text: str | tuple[str, str],
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[Classified]: ...
@overload
def classify(
    model: str,
    *,
    text: list[str] | list[tuple[str, str]],
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[list[Classified]]: ...
@overload
def classify(
    model: str,
    *,
    image: Picture,
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[Classified]: ...
@overload
def classify(
    model: str,
    *,
    image: Many[Picture],
    top_k: int | None = ...,
    threshold: float | None = ...,
    **options: Unpack[Options],
) -> Call[list[Classified]]: ...
def classify(
    model: str,
    *,
    text: Any = None,
    image: Any = None,
    top_k: int | None = None,
    threshold: float | None = None,
    **options: Unpack[Options],
) -> Call[Any]:
    """Labels a text (or a pair of texts, as a tuple) or an image, or each of several in a list."""
    if (text is None) == (image is None):
        raise InvalidInput("text or image is needed, one of the two", field="text")
    if image is None:
        many = isinstance(text, list)  # a tuple is a pair
        inputs = [requests.text_input(each) for each in (text if many else [text])]
    else:
        many = is_many(image)
        inputs = [requests.image_input(each) for each in listed(image)]
    request = fill(classification_pb2.ClassifyRequest(input=inputs), {"top_k": top_k, "threshold": threshold})
    return Call(model, "Classify", request, _results(answers.classified, many=many), options)


@overload
def detect(
    model: str,
    image: Picture,
    *,
    threshold: float | None = ...,
    max_boxes: int | None = ...,
    **options: Unpack[Options],
) -> Call[Detected]: ...
@overload
def detect(
    model: str,
    image: Many[Picture],
    *,
    threshold: float | None = ...,
    max_boxes: int | None = ...,
    **options: Unpack[Options],
) -> Call[list[Detected]]: ...
def detect(
    model: str,
    image: Picture | Many[Picture],
    *,
    threshold: float | None = None,
    max_boxes: int | None = None,
    **options: Unpack[Options],
) -> Call[Any]:
    """Finds things in an image, or in each of several; boxes are in pixels of the image."""
    images = [requests.image(each) for each in listed(image)]
    request = fill(detection_pb2.DetectRequest(image=images), {"threshold": threshold, "max_boxes": max_boxes})
    return Call(model, "Detect", request, _results(answers.detected, many=is_many(image)), options)


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
    """What to do after a history, or after each of several. For a run of an environment, `episode` is faster."""
    histories = [requests.history(each) for each in listed(history)]
    request = fill(policy_pb2.ActRequest(history=histories), {"greedy": greedy, "seed": seed})
    return Call(model, "Act", request, _results(answers.action, many=is_many(history)), options)


def episode(
    model: str,
    *,
    target_return: float,
    greedy: bool | None = None,
    seed: int | None = None,
    history: Sequence[Step] = (),
    **options: Unpack[Options],
) -> EpisodeCall:
    """One run of an environment; `timeout` is that of a step, `history` goes on from what another episode had."""
    start = fill(policy_pb2.Start(), {"target_return": target_return, "greedy": greedy, "seed": seed})
    return EpisodeCall(model, Script(start, history), options)


@overload
def generate(model: str, prompt: str, **decoding: Unpack[Decoding]) -> Call[Words]: ...
@overload
def generate(model: str, prompt: Many[str], **decoding: Unpack[Decoding]) -> Call[list[Words]]: ...
def generate(model: str, prompt: str | Many[str], **decoding: Unpack[Decoding]) -> Call[Any]:
    """Goes on from a prompt, or from each of several."""
    options, how = _apart(decoding)
    request = fill(generation_pb2.GenerateRequest(), {"prompt": listed(prompt), "decoding": how})
    return Call(model, "Generate", request, _results(answers.words, many=is_many(prompt)), options)


def generate_stream(model: str, prompt: str, **decoding: Unpack[Decoding]) -> StreamCall:
    """Goes on from a prompt and gives the pieces as they fall."""
    options, how = _apart(decoding)
    request = fill(generation_pb2.GenerateStreamRequest(), {"prompt": prompt, "decoding": how})
    return StreamCall(model, "GenerateStream", request, options)


def generate_images(
    model: str, *, count: int | None = None, seed: int | None = None, **options: Unpack[Options]
) -> Call[GeneratedImages]:
    """Makes images."""
    request = fill(generation_pb2.GenerateImagesRequest(), {"count": count, "seed": seed})
    return Call(model, "GenerateImages", request, answers.images, options)


def models(**options: Unpack[Options]) -> Call[list[ModelSummary]]:
    """All models that are served."""
    return Call(CATALOG, "ListModels", models_pb2.ListModelsRequest(), answers.models, options)


def describe(model: str, **options: Unpack[Options]) -> Call[Description]:
    """What the model is and takes."""
    return Call(model, "Describe", models_pb2.DescribeRequest(), answers.description, options)


def _apart(given: Decoding) -> tuple[Options, Any]:
    how = {name: value for name, value in given.items() if name not in Options.__annotations__}
    options: Any = {name: value for name, value in given.items() if name in Options.__annotations__}
    return options, requests.decoding(how)


def _results(parse: Callable[[Any, answers.Account], Each], *, many: bool) -> Callable[[Any], Any]:
    """One result for one input, a list for a list."""

    def parse_all(reply: Any) -> list[Each] | Each:
        common = answers.account(reply)
        results = [parse(each, common) for each in reply.results]
        return results if many else results[0]

    return parse_all
