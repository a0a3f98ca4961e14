"""Abstract model classes of the zoo, one per task; the export families are chosen by these classes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from headwaiter.package.manifest import Task
from headwaiter_export.zoo.layers.attention import CrossAttention
from headwaiter_export.zoo.sizes import ActorSizes, ImageSizes, SequenceSizes, Sizes


class ZooModel(nn.Module):
    """Base class. A model is built from its `sizes` alone; `Sizes` is the class that validates them."""

    task: ClassVar[Task]
    Sizes: ClassVar[type[Sizes]]
    no_fused_operator_reason: ClassVar[str | None] = None  # why attention of this model cannot use a fused operator

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        self.sizes = sizes

    def extra_loss(self) -> Tensor | float:
        """Model-specific term added to the dataset's loss after each forward pass, for example a ponder cost."""
        return 0.0


class TextClassifier(ZooModel):
    task = "classification"
    Sizes: ClassVar[type[Sizes]] = SequenceSizes

    @abstractmethod
    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return scores [rows, classes] of tokens [rows, length]; the first `lengths` [rows] tokens of each row are
        valid."""


class ImageClassifier(ZooModel):
    task = "classification"
    Sizes: ClassVar[type[Sizes]] = ImageSizes

    @abstractmethod
    def forward(self, pixels: Tensor) -> Tensor:
        """Return scores [rows, classes] of pixels [rows, 3, height, width]."""


class DistilledImageClassifier(ImageClassifier):
    @abstractmethod
    def class_and_distillation_scores(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores [rows, classes] of the class head and those of the distillation head."""


class Detector(ZooModel):
    task = "detection"

    @abstractmethod
    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores [rows, queries, classes + 1], the last class being "no object", and boxes [rows, queries, 4] as
        center x, center y, width and height relative to the image."""

    def predictions(self, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the predictions that the loss is computed on: the final one, or one per decoder layer with the final
        one last."""
        return [self(pixels)]


class ImageGenerator(ZooModel):
    """Generates images from noise. `critic` is the discriminator; it is used in training only and not exported."""

    task = "generation"
    critic: nn.Module

    @abstractmethod
    def forward(self, noise: Tensor) -> Tensor:
        """Return pixels [rows, 3, height, width] in [0, 1] for standard normal noise [rows, size]."""


class AutoregressiveModel(ZooModel):
    """Generates one token at a time. `decode` is separate from `forward` so that a single step over a KV cache can be
    exported as a graph."""

    @abstractmethod
    def decode(self, tokens: Tensor, positions: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        """Return hidden states [rows, steps, size] of `tokens` at `positions` [rows, steps]. `memory` is the encoder
        output, of which the first `lengths` [rows] positions are valid."""

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor: ...

    def cross_attentions(self) -> Sequence[CrossAttention]:
        """Return the cross-attention of each layer."""
        return ()

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the per-row shapes of recurrent states that each step replaces; empty for models with a KV cache."""
        return {}

    def forward(self, tokens: Tensor, memory: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Return logits [rows, steps, vocabulary] of whole sequences."""
        positions = torch.arange(tokens.shape[1])[None].expand(tokens.shape[0], -1)
        return self.logits(self.decode(tokens, positions, memory, lengths))


class Generator(AutoregressiveModel):
    task = "generation"


class Translator(AutoregressiveModel):
    task = "translation"

    @abstractmethod
    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return encoder states [rows, source, size]."""


class Captioner(AutoregressiveModel):
    task = "captioning"

    @abstractmethod
    def encode(self, pixels: Tensor) -> Tensor:
        """Return encoder states [rows, positions, size] of the image."""


class Trajectories(NamedTuple):
    """Batch of episodes [rows, length]: return-to-go, state and action at each step."""

    timesteps: Tensor
    returns: Tensor
    states: Tensor  # [rows, length, size]
    actions: Tensor  # [rows, length, actions], one-hot


class Actor(ZooModel):
    """Chooses among discrete actions. `decode` is separate from `forward`, as in `AutoregressiveModel`; each step is
    three tokens: return-to-go, state and action."""

    task = "policy"
    Sizes: ClassVar[type[Sizes]] = ActorSizes

    @abstractmethod
    def decode(self, kinds: Tensor, trajectories: Trajectories, positions: Tensor) -> Tensor:
        """Return hidden states [rows, steps, size] of tokens at `positions`. `kinds` [rows, steps] selects which part
        of `trajectories` each token is."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return action scores for the hidden states of state tokens; higher is better."""

    @abstractmethod
    def forward(self, trajectories: Trajectories) -> Tensor:
        """Return logits [rows, length, actions] at every step of whole episodes."""

    def head_size(self) -> int:
        """Size of an attention head in the KV cache."""
        return int(self.sizes.size // self.sizes.heads)


class QNetwork(Actor):
    """An actor whose logits are action values, so it can be trained by Q-learning."""
