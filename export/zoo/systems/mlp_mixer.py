from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.data.digits import Digits
from export.zoo.kit.blocks import FeedForward
from export.zoo.kit.patches import PatchClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import ImageSizes, Sizes


class MixerSizes(ImageSizes):
    between: PositiveInt = 64  # inside the feed-forward blocks that mix patches


class PlaceMixer(nn.Module):
    """A feed-forward block along each number, from place to place."""

    def __init__(self, places: int, hidden: int) -> None:
        super().__init__()
        self.feed_forward = FeedForward(places, hidden)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:  # noqa: ARG002
        mixed: Tensor = self.feed_forward(states.transpose(1, 2)).transpose(1, 2)
        return mixed


@system(
    "mlp-mixer",
    group="other mixing, depth, positions",
    paper="Tolstikhin et al. 2021, MLP-Mixer: An all-MLP Architecture for Vision",
    recipe=Recipe(Digits, bar=0.95, steps=2500),
)
class MlpMixer(PatchClassifier):
    """No attention, and no positions: each place has weights of its own."""

    Sizes: ClassVar[type[Sizes]] = MixerSizes

    def make_mixer(self, sizes: ImageSizes) -> nn.Module:
        assert isinstance(sizes, MixerSizes)
        return PlaceMixer(sizes.patches, sizes.between)
