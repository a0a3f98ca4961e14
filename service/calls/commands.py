"""The verbs of `headwaiter call`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from service.calls import show
from service.calls.documents import read_history
from service.calls.drawing import demand_image_name, draw_boxes
from service.calls.orders import DECODING, Order, verb
from service.calls.saving import demand_target, save_images
from service.client import InvalidInput, verbs

Input = TypeVar("Input")
Texts = Annotated[list[str] | None, typer.Argument(help="Else standard input, as one.", show_default=False)]
Pictures = Annotated[list[Path], typer.Argument(help="Files: JPEG, PNG, WebP or GIF.", show_default=False)]
Stream = Annotated[bool, typer.Option("--stream", help="Show the text as it falls.")]
Threshold = Annotated[float | None, typer.Option(help="Leave out what scores less, from 0 to 1.")]


def add_commands(app: typer.Typer) -> None:
    call = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    call.callback()(call_command)
    for name, command in _VERBS.items():
        call.command(name, no_args_is_help=False)(command)
    app.add_typer(call, name="call")


def call_command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The name that the model is served under.")],
) -> None:
    """Ask a served model. Help for a verb: headwaiter call MODEL VERB --help

    Examples:

      headwaiter call opus-mt-zh-en translate 服务器崩溃了，请稍后再试。

      headwaiter call opus-mt-zh-en translate --stream < letter.txt

      headwaiter call emoji-detr detect scene.png --save found.png

      headwaiter call opus-mt-zh-en describe
    """
    context.obj = model


@verb(*DECODING)
def translate(
    order: Order,
    text: Texts = None,
    source_language: Annotated[str | None, typer.Option(help="Where the model knows several.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Where the model knows several.")] = None,
    split: Annotated[bool | None, typer.Option(help="Split texts into sentences.")] = None,
    stream: Stream = False,
    **decoding: Any,
) -> None:
    """Translate texts.

    Examples:

      headwaiter call opus-mt-zh-en translate 你好。 再见。 --beams 4 --best 2

      headwaiter call opus-mt-zh-en translate --stream < letter.txt
    """
    texts = _texts(text, "text")
    languages: Any = {"source_language": source_language, "target_language": target_language, "split": split}
    if stream:
        order.stream(verbs.translate_stream(order.model, _only(texts, "text"), **languages, **decoding))
    else:
        order.ask(verbs.translate(order.model, texts, **languages, **decoding), show.words)


@verb(*DECODING)
def caption(
    order: Order,
    image: Pictures,
    prompt: Annotated[str | None, typer.Option(help="How the caption begins.")] = None,
    stream: Stream = False,
    **decoding: Any,
) -> None:
    """Describe images.

    Examples:

      headwaiter call vit-gpt2 caption beach.jpg --max-new-tokens 20
    """
    if stream:
        order.stream(verbs.caption_stream(order.model, _only(image, "image"), prompt=prompt, **decoding))
    else:
        order.ask(verbs.caption(order.model, [*image], prompt=prompt, **decoding), show.words)


@verb()
def classify(
    order: Order,
    text: Texts = None,
    image: Annotated[list[Path] | None, typer.Option(help="A file, instead of a text; may be repeated.")] = None,
    second: Annotated[str | None, typer.Option(help="Judge each text together with this one.")] = None,
    top_k: Annotated[int | None, typer.Option(help="The most labels to show; else all.")] = None,
    threshold: Threshold = None,
) -> None:
    """Label texts or images.

    Examples:

      headwaiter call support-topics classify 'My card was charged twice' --top-k 3

      headwaiter call vit classify --image cat.jpg
    """
    chosen: Any = {"top_k": top_k, "threshold": threshold}
    if image:
        if text or second:
            raise InvalidInput("text or image is needed, one of the two", field="text")
        order.ask(verbs.classify(order.model, image=[*image], **chosen), show.classified)
        return
    texts: list[Any] = [each if second is None else (each, second) for each in _texts(text, "text")]
    order.ask(verbs.classify(order.model, text=texts, **chosen), show.classified)


@verb()
def detect(
    order: Order,
    image: Pictures,
    threshold: Threshold = None,
    max_boxes: Annotated[int | None, typer.Option(help="The most boxes in an image; else all.")] = None,
    save: Annotated[Path | None, typer.Option(help="Draw the boxes into a copy of the image.")] = None,
) -> None:
    """Find things in images.

    Examples:

      headwaiter call emoji-detr detect scene.png --threshold 0.7 --save found.png
    """
    if save is not None:
        _only(image, "image", "with --save")
        demand_image_name(save)
    found = order.ask(verbs.detect(order.model, [*image], threshold=threshold, max_boxes=max_boxes), show.detected)
    if save is not None:
        draw_boxes(image[0], found[0], save)


@verb()
def act(
    order: Order,
    history: Annotated[
        list[str] | None,
        typer.Argument(
            help="JSON: a state as a list of numbers, or a history. Else standard input.", show_default=False
        ),
    ] = None,
    target_return: Annotated[float | None, typer.Option(help="The sum of rewards to aim for.")] = None,
    greedy: Annotated[bool | None, typer.Option(help="The likeliest action, or one by its chance.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same actions.")] = None,
) -> None:
    """Ask a policy what to do.

    Examples:

      headwaiter call breakout-dt act < samples/breakout.json

      headwaiter call cartpole act '[0.1, -0.5, 0.3, 0.2]' --target-return 200

      headwaiter call walker act '{"steps": [{"state": [1, 0], "action": {"discrete": 2}, "reward": 1},
      {"state": [0, 1]}], "target_return": 40}'
    """
    histories = [read_history(each, target_return) for each in _texts(history, "history")]
    order.ask(verbs.act(order.model, histories, greedy=greedy, seed=seed), show.actions)


@verb(*DECODING)
def generate(order: Order, prompt: Texts = None, stream: Stream = False, **decoding: Any) -> None:
    """Go on from prompts.

    Examples:

      headwaiter call gpt2 generate 'Once upon a time' --sample --seed 1 --stream
    """
    prompts = _texts(prompt, "prompt")
    if stream:
        order.stream(verbs.generate_stream(order.model, _only(prompts, "prompt"), **decoding))
    else:
        order.ask(verbs.generate(order.model, prompts, **decoding), show.words)


@verb()
def generate_images(
    order: Order,
    count: Annotated[int | None, typer.Option(help="How many; 1 unless told.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed makes the same images.")] = None,
    save: Annotated[Path | None, typer.Option(help="A folder for the images, or a file for all side by side.")] = None,
) -> None:
    """Make images.

    Examples:

      headwaiter call transgan generate-images --count 4 --seed 1 --save digits.png
    """
    if save is not None:
        demand_target(save)
    made = order.ask(verbs.generate_images(order.model, count=count, seed=seed), show.images)
    if save is not None:
        save_images(made.images, save)


@verb()
def describe(order: Order) -> None:
    """Tell what the model is and takes: task, limits, labels, defaults."""
    order.ask(verbs.describe(order.model), show.description)


_VERBS = {
    "translate": translate,
    "caption": caption,
    "classify": classify,
    "detect": detect,
    "act": act,
    "generate": generate,
    "generate-images": generate_images,
    "describe": describe,
}


def _texts(given: list[str] | None, field: str) -> list[str]:
    if given:
        return given
    piped = "" if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    if not piped:
        raise InvalidInput(f"{field} is missing; give it as an argument or through standard input", field=field)
    return [piped]


def _only(given: list[Input], field: str, when: str = "with --stream") -> Input:
    if len(given) != 1:
        raise InvalidInput(f"{field} is {len(given)} of them; {when} it is one", field=field, limit=1)
    return given[0]
