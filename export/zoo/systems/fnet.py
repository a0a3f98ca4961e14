from __future__ import annotations

import torch
from torch import Tensor, nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.masks import blanked
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes


class FourierMixer(nn.Module):
    """The real part of a Fourier transform over places and over numbers, as two products with fixed matrices: that is
    what runs fast everywhere at these lengths."""

    place_cosines: Tensor
    place_sines: Tensor
    number_cosines: Tensor
    number_sines: Tensor

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        for name, width in (("place", length), ("number", size)):
            angles = 2 * torch.pi * torch.outer(torch.arange(width), torch.arange(width)).remainder(width) / width
            self.register_buffer(f"{name}_cosines", angles.cos() * width**-0.5, persistent=False)
            self.register_buffer(f"{name}_sines", angles.sin() * width**-0.5, persistent=False)

    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        states = blanked(states, lengths)
        real = self.place_cosines @ (states @ self.number_cosines)
        return real - self.place_sines @ (states @ self.number_sines)


@system(
    "fnet",
    group="other mixing, depth, positions",
    paper="Lee-Thorp et al. 2021, FNet: Mixing Tokens with Fourier Transforms",
    recipe=Recipe(ListOps, bar=0.7, steps=3000),
)
class FNet(SequenceClassifier):
    fixed_length = True

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return FourierMixer(sizes.length, sizes.size)
