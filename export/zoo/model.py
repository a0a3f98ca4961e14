"""What the systems of the zoo are to the rest of the house: modules of a few kinds, each with its task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from export.zoo.kit.attention import CrossAttention
from export.zoo.sizes import ActorSizes, ImageSizes, SequenceSizes, Sizes
from service.package import Task


class ZooModel(nn.Module):
    """Built from `sizes` alone. `Sizes` is the class that reads them."""

    task: ClassVar[Task]
    Sizes: ClassVar[type[Sizes]]
    unfusable: ClassVar[str | None] = None  # why a softmax of this system has no fused operator, where it has none

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        self.sizes = sizes

    def extra_loss(self) -> Tensor | float:
        """What the last forward pass adds to the loss of the data: ponder time, balance, and the like."""
        return 0.0


class TextClassifier(ZooModel):
    task = "classification"
    Sizes: ClassVar[type[Sizes]] = SequenceSizes

    @abstractmethod
    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Scores [rows, classes] of tokens [rows, length], of which the first `lengths` [rows] of each row are real."""


class ImageClassifier(ZooModel):
    task = "classification"
    Sizes: ClassVar[type[Sizes]] = ImageSizes

    @abstractmethod
    def forward(self, pixels: Tensor) -> Tensor:
        """Scores [rows, classes] of pixels [rows, 3, height, width]."""


class Pupil(ImageClassifier):
    @abstractmethod
    def answers(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [rows, classes] of its own, and those that it learned from a teacher."""


class Detector(ZooModel):
    task = "detection"

    @abstractmethod
    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [rows, queries, classes + 1], the last of them for nothing, and boxes [rows, queries, 4]: centre x and
        y, width, height, as shares of the image."""

    def guesses(self, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What is to learn: one guess, or one for each layer, of which the last is the answer."""
        return [self(pixels)]


class Painter(ZooModel):
    """Images out of noise. The `critic` judges while it learns and is no part of what is exported."""

    task = "generation"
    critic: nn.Module

    @abstractmethod
    def forward(self, noise: Tensor) -> Tensor:
        """Pixels [rows, 3, height, width], from 0 to 1, of noise [rows, size] as a normal distribution gives it."""


class Writer(ZooModel):
    """Words, one after another. `decode` stands alone, so that one step of it can be a graph over a cache."""

    @abstractmethod
    def decode(self, tokens: Tensor, positions: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        """States [rows, steps, size] of tokens that stand at positions [rows, steps], beside what the encoder made of
        the source, of which `lengths` [rows] places are real."""

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor: ...

    def crossings(self) -> Sequence[CrossAttention]:
        """The attention of each layer to the source."""
        return ()

    def held(self) -> dict[str, tuple[int, ...]]:
        """States that each step replaces, by name, and the shape of a row's; none where keys and values are cached."""
        return {}

    def forward(self, tokens: Tensor, memory: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Logits [rows, steps, vocabulary] of whole texts."""
        positions = torch.arange(tokens.shape[1])[None].expand(tokens.shape[0], -1)
        return self.logits(self.decode(tokens, positions, memory, lengths))


class Generator(Writer):
    task = "generation"


class Translator(Writer):
    task = "translation"

    @abstractmethod
    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """States [rows, source, size] of the source."""


class Captioner(Writer):
    task = "captioning"

    @abstractmethod
    def encode(self, pixels: Tensor) -> Tensor:
        """States [rows, places, size] of the image."""


class Moments(NamedTuple):
    """Whole episodes, [rows, length]: at each moment what was still to come, what was seen, and what was done then."""

    timesteps: Tensor
    returns: Tensor
    states: Tensor  # [rows, length, size]
    actions: Tensor  # [rows, length, actions], a one among zeros


class Actor(ZooModel):
    """Chooses among a few actions. `decode` stands alone, as that of writers; a moment is three tokens of it: the
    return to go, the state, the action."""

    task = "policy"
    Sizes: ClassVar[type[Sizes]] = ActorSizes

    @abstractmethod
    def decode(self, kinds: Tensor, moments: Moments, positions: Tensor) -> Tensor:
        """Hidden states [rows, steps, size] of tokens that stand at `positions`. `kinds` [rows, steps] says which part
        of `moments` each token is."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """The higher, the better an action; from the hidden states of state tokens."""

    @abstractmethod
    def forward(self, moments: Moments) -> Tensor:
        """Logits [rows, length, actions] at every moment of whole episodes."""

    def head_size(self) -> int:
        """Of what the cache holds."""
        return int(self.sizes.size // self.sizes.heads)


class Valuer(Actor):
    """Its logits are what actions are worth, so it can learn by playing."""
