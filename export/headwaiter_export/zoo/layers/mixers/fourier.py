from __future__ import annotations

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.layers.masks import zero_padding


class FourierMixer(nn.Module):
    """Lee-Thorp et al. 2021: real part of a Fourier transform over positions and features, computed as products with
    fixed matrices, which is fast at these lengths."""

    position_cosines: Tensor
    position_sines: Tensor
    feature_cosines: Tensor
    feature_sines: Tensor

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        for name, width in (("position", length), ("feature", size)):
            angles = 2 * torch.pi * torch.outer(torch.arange(width), torch.arange(width)).remainder(width) / width
            self.register_buffer(f"{name}_cosines", angles.cos() * width**-0.5, persistent=False)
            self.register_buffer(f"{name}_sines", angles.sin() * width**-0.5, persistent=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        states = zero_padding(states, lengths)
        real = self.position_cosines @ (states @ self.feature_cosines)
        return real - self.position_sines @ (states @ self.feature_sines)
