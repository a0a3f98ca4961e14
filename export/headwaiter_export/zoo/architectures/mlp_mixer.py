from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn

from headwaiter_export.zoo.data.digits import Digits
from headwaiter_export.zoo.layers.blocks import FeedForward
from headwaiter_export.zoo.layers.patch_classifiers import PatchClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import ImageSizes, Sizes


class MlpMixerSizes(ImageSizes):
    between: PositiveInt = 64  # width of the feed-forward blocks that mix patches


class TokenMixer(nn.Module):
    """Feed-forward block across positions, applied to each channel."""

    def __init__(self, positions: int, hidden: int) -> None:
        super().__init__()
        self.feed_forward = FeedForward(positions, hidden)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:  # noqa: ARG002
        mixed: Tensor = self.feed_forward(states.transpose(1, 2)).transpose(1, 2)
        return mixed


@architecture(
    "mlp-mixer",
    group="other mixing, depth, positions",
    paper="Tolstikhin et al. 2021, MLP-Mixer: An all-MLP Architecture for Vision",
    recipe=Recipe(Digits, target=0.95, steps=2500),
)
class MlpMixer(PatchClassifier):
    """No attention and no position embeddings: the token mixer has weights per position."""

    Sizes: ClassVar[type[Sizes]] = MlpMixerSizes

    def make_mixer(self, sizes: ImageSizes) -> nn.Module:
        assert isinstance(sizes, MlpMixerSizes)
        return TokenMixer(sizes.patches, sizes.between)
