from __future__ import annotations

import torch
from torch import Tensor, nn

from export.zoo.kit.masks import blanked


class FourierMixer(nn.Module):
    """Lee-Thorp et al. 2021: the real part of a Fourier transform over places and over numbers, as products with fixed
    matrices: that is what runs fast everywhere at these lengths."""

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

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        states = blanked(states, lengths)
        real = self.place_cosines @ (states @ self.number_cosines)
        return real - self.place_sines @ (states @ self.number_sines)
