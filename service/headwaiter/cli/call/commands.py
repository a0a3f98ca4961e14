"""The subcommands of `headwaiter call`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from headwaiter.cli.call import output
from headwaiter.cli.call.box_drawing import check_image_path, draw_boxes
from headwaiter.cli.call.context import DECODING_OPTIONS, CallContext, subcommand
from headwaiter.cli.call.derived_commands import derive_command, unary_methods
from headwaiter.cli.call.image_files import check_output_path, save_images
from headwaiter.cli.call.json_messages import read_history
from headwaiter.client import InvalidInput, operations
from headwaiter.protocol.tasks import resolve, task_specs

Input = TypeVar("Input")
Texts = Annotated[
    list[str] | None,
    typer.Argument(help="Input texts (default: all of standard input as one text).", show_default=False),
]
ImageFiles = Annotated[list[Path], typer.Argument(help="Image files: JPEG, PNG, WebP or GIF.", show_default=False)]
Stream = Annotated[bool, typer.Option("--stream", help="Print the text as it is generated; takes one input.")]


def add_commands(app: typer.Typer) -> None:
    call = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    call.callback()(call_command)
    for name, command in _subcommands().items():
        call.command(name, no_args_is_help=False)(command)
    app.add_typer(call, name="call")


def call_command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the served model.")],
) -> None:
    """Call a served model. Help for a subcommand: headwaiter call MODEL COMMAND --help

    Examples:

      headwaiter call opus-mt-zh-en translate 服务器崩溃了，请稍后再试。

      headwaiter call opus-mt-zh-en translate --stream < letter.txt

      headwaiter call emoji-detr detect scene.png --save boxes.png

      headwaiter call opus-mt-zh-en describe
    """
    context.obj = model


@subcommand(*DECODING_OPTIONS)
def translate(
    call_context: CallContext,
    text: Texts = None,
    source_language: Annotated[str | None, typer.Option(help="Language of the input, for multilingual models.")] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Language of the translation, for multilingual models.")
    ] = None,
    split: Annotated[bool | None, typer.Option(help="Split texts into sentences (default: --split).")] = None,
    stream: Stream = False,
    **decoding: Any,
) -> None:
    """Translate texts.

    Examples:

      headwaiter call opus-mt-zh-en translate 你好。 再见。 --num-beams 4 --num-return-sequences 2

      headwaiter call opus-mt-zh-en translate --stream < letter.txt
    """
    texts = _read_texts(text, "text")
    languages: Any = {"source_language": source_language, "target_language": target_language, "split": split}
    if stream:
        call_context.stream(
            operations.translate_stream(call_context.model, _require_single(texts, "text"), **languages, **decoding)
        )
    else:
        call_context.execute(
            operations.translate(call_context.model, texts, **languages, **decoding), output.print_texts
        )


@subcommand(*DECODING_OPTIONS)
def caption(
    call_context: CallContext,
    image: ImageFiles,
    prompt: Annotated[str | None, typer.Option(help="Beginning of the caption (default: none).")] = None,
    stream: Stream = False,
    **decoding: Any,
) -> None:
    """Caption images.

    Examples:

      headwaiter call vit-gpt2 caption beach.jpg --max-new-tokens 20
    """
    if stream:
        call_context.stream(
            operations.caption_stream(call_context.model, _require_single(image, "image"), prompt=prompt, **decoding)
        )
    else:
        call_context.execute(
            operations.caption(call_context.model, [*image], prompt=prompt, **decoding), output.print_texts
        )


@subcommand()
def classify(
    call_context: CallContext,
    text: Texts = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="Image file to classify instead of texts; repeatable.")
    ] = None,
    second: Annotated[str | None, typer.Option(help="Second text; each input is classified as a pair with it.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Maximum number of labels (default: all).")] = None,
    threshold: Annotated[float | None, typer.Option(help="Minimum score of a label, 0 to 1 (default: 0).")] = None,
) -> None:
    """Classify texts or images.

    Examples:

      headwaiter call support-topics classify 'My card was charged twice' --top-k 3

      headwaiter call vit classify --image cat.jpg
    """
    filters: Any = {"top_k": top_k, "threshold": threshold}
    if image:
        if text or second:
            raise InvalidInput("either text or image is required, not both", field="text")
        call_context.execute(operations.classify(call_context.model, image=[*image], **filters), output.print_labels)
        return
    texts: list[Any] = [item if second is None else (item, second) for item in _read_texts(text, "text")]
    call_context.execute(operations.classify(call_context.model, text=texts, **filters), output.print_labels)


@subcommand()
def detect(
    call_context: CallContext,
    image: ImageFiles,
    threshold: Annotated[float | None, typer.Option(help="Minimum score of a box, 0 to 1 (default: 0.5).")] = None,
    max_boxes: Annotated[int | None, typer.Option(help="Maximum number of boxes per image (default: all).")] = None,
    save: Annotated[
        Path | None, typer.Option(help="File for a copy of the image with its boxes; takes one image.")
    ] = None,
) -> None:
    """Detect objects in images.

    Examples:

      headwaiter call emoji-detr detect scene.png --threshold 0.7 --save boxes.png
    """
    if save is not None:
        _require_single(image, "image", "--save")
        check_image_path(save)
    results = call_context.execute(
        operations.detect(call_context.model, [*image], threshold=threshold, max_boxes=max_boxes), output.print_boxes
    )
    if save is not None:
        draw_boxes(image[0], results[0], save)


@subcommand()
def act(
    call_context: CallContext,
    history: Annotated[
        list[str] | None,
        typer.Argument(
            help="State as a JSON list of numbers, or history as a JSON object (default: standard input).",
            show_default=False,
        ),
    ] = None,
    target_return: Annotated[
        float | None, typer.Option(help="Sum of rewards to aim for (default: that of the history).")
    ] = None,
    greedy: Annotated[
        bool | None, typer.Option(help="Choose the most probable action instead of sampling one (default: --greedy).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed, for reproducible actions (default: random).")] = None,
) -> None:
    """Get the next action of a policy.

    Examples:

      headwaiter call breakout-dt act < samples/breakout.json

      headwaiter call cartpole act '[0.1, -0.5, 0.3, 0.2]' --target-return 200

      headwaiter call walker act '{"steps": [{"state": [1, 0], "action": {"discrete": 2}, "reward": 1},
      {"state": [0, 1]}], "target_return": 40}'
    """
    histories = [read_history(item, target_return) for item in _read_texts(history, "history")]
    call_context.execute(operations.act(call_context.model, histories, greedy=greedy, seed=seed), output.print_actions)


@subcommand(*DECODING_OPTIONS)
def generate(call_context: CallContext, prompt: Texts = None, stream: Stream = False, **decoding: Any) -> None:
    """Continue prompts.

    Examples:

      headwaiter call gpt2 generate 'Once upon a time' --do-sample --seed 1 --stream
    """
    prompts = _read_texts(prompt, "prompt")
    if stream:
        call_context.stream(
            operations.generate_stream(call_context.model, _require_single(prompts, "prompt"), **decoding)
        )
    else:
        call_context.execute(operations.generate(call_context.model, prompts, **decoding), output.print_texts)


@subcommand()
def generate_images(
    call_context: CallContext,
    count: Annotated[int | None, typer.Option(help="Number of images (default: 1).")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed, for reproducible images (default: random).")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Directory for separate files, or image file for a grid of all images.")
    ] = None,
) -> None:
    """Generate images.

    Examples:

      headwaiter call transgan generate-images --count 4 --seed 1 --save digits.png
    """
    if save is not None:
        check_output_path(save)
    call = operations.generate_images(call_context.model, count=count, seed=seed)
    result = call_context.execute(call, output.print_images)
    if save is not None:
        save_images(result.images, save)


@subcommand()
def describe(call_context: CallContext) -> None:
    """Describe the model: task, limits, labels, default decoding parameters."""
    call_context.execute(operations.describe(call_context.model), output.print_description)


def _subcommands() -> dict[str, Callable[..., None]]:
    """The commands of all tasks; those that a task does not name are derived from its protocol."""
    commands: dict[str, Callable[..., None]] = {}
    for spec in task_specs().values():
        if spec.commands:
            commands |= {name: resolve(import_string) for name, import_string in spec.commands}
        else:
            commands |= {method.command: derive_command(method) for method in unary_methods(spec)}
    return {**commands, "describe": describe}


def _read_texts(arguments: list[str] | None, field: str) -> list[str]:
    """Return the arguments, or standard input as one text. Raises InvalidInput if both are empty."""
    if arguments:
        return arguments
    text = "" if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    if not text:
        raise InvalidInput(f"{field} is missing; pass it as an argument or through standard input", field=field)
    return [text]


def _require_single(inputs: list[Input], field: str, option: str = "--stream") -> Input:
    if len(inputs) != 1:
        raise InvalidInput(f"{field} has {len(inputs)} values; {option} takes 1", field=field, limit=1)
    return inputs[0]
