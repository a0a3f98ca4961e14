"""How the models of the house learn: systems of the zoo, with data and recipes of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from safetensors.torch import load_file
from torch import nn

from export.errors import SourceError
from export.menu import WEIGHTS
from export.menu.data.breakout import WatchedBreakout
from export.menu.data.definitions import Definitions
from export.menu.data.emoji import EmojiCaptions, EmojiScenes
from export.zoo.checkpoint import WEIGHTS as FILE
from export.zoo.data.fashion import Fashion
from export.zoo.recipe import Recipe
from export.zoo.registry import System, find


@dataclass(frozen=True, slots=True)
class Lesson:
    """A system of the zoo and what makes the model of it; `begin` is where it starts, unless at random."""

    system: str
    recipe: Recipe
    begin: Callable[[nn.Module], None] | None = None


def _with_eyes_of_detr(captioner: nn.Module) -> None:
    """What emoji-detr finds. That part stays as it is, so that a scene need be looked at only once."""
    learned, eyes = load_file(WEIGHTS / "emoji-detr" / FILE), captioner.get_submodule("encoder.0")
    eyes.load_state_dict({name: learned[f"objects.{name}"] for name in eyes.state_dict()})
    eyes.requires_grad_(False)


def _with_small_words(bert: nn.Module) -> None:
    """As BERT begins: vectors of unit size would hide for long what a rare word has learned."""
    nn.init.normal_(bert.get_submodule("words").weight, std=0.02)  # type: ignore[arg-type]


_LESSONS = {
    "fashion-vit": Lesson(
        "vit",
        Recipe(
            Fashion,
            bar=0.92,
            steps=10_000,
            batch=128,
            rate=1.5e-3,
            sizes={"size": 96, "hidden": 192, "layers": 3, "convolutions": True},
        ),
    ),
    "topics-bert": Lesson(
        "bert",
        Recipe(Definitions, bar=0.9, steps=1000, batch=128, rate=2e-3, sizes={"size": 128, "hidden": 256}),
        _with_small_words,
    ),
    "emoji-detr": Lesson(
        "detr",
        Recipe(
            EmojiScenes,
            bar=0.97,
            steps=4500,
            batch=32,
            rate=1.5e-3,
            sizes={"size": 96, "hidden": 192, "queries": 16, "decoder_layers": 3},
        ),
    ),
    "emoji-captioner": Lesson(
        "vit-captioner",
        Recipe(
            EmojiCaptions,
            bar=0.85,
            steps=6000,
            batch=128,
            rate=1.5e-3,
            options={"scenes": 60_000},
            sizes={"size": 96, "hidden": 192, "patch": 8, "queries": 16, "classes": 24, "decoder_layers": 3},
        ),
        _with_eyes_of_detr,
    ),
    "breakout-dt": Lesson(
        "decision-transformer",
        Recipe(
            WatchedBreakout,
            bar=4.5,  # twice the mean return of what it watches
            steps=3000,
            batch=128,
            sizes={"size": 96, "hidden": 192, "unit": 10},
        ),
    ),
}


def lesson(name: str) -> Lesson:
    if name not in _LESSONS:
        raise SourceError(f"{name} is not trained here; {', '.join(_LESSONS)} are.")
    return _LESSONS[name]


def taught(name: str) -> System:
    """The system of the zoo that this model is, with the recipe that makes the model of it."""
    found = lesson(name)
    return replace(find(found.system), recipe=found.recipe)
