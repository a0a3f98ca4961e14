"""Carion et al. 2020: blocks whose attention knows places, which are added to what is compared in every layer anew."""

from __future__ import annotations

from torch import Tensor, nn

from export.zoo.kit.attention import PlacedAttention
from export.zoo.kit.blocks import FeedForward
from export.zoo.kit.images import STRIDE, Stem
from export.zoo.kit.positions import grid_sinusoids
from export.zoo.sizes import Width


class PlacedBlock(nn.Module):
    """Places attend to each other and, in the decoder, to those of the image."""

    def __init__(self, sizes: Width, *, crosses: bool) -> None:
        super().__init__()
        self.attention = PlacedAttention(sizes.size, sizes.heads)
        self.cross = PlacedAttention(sizes.size, sizes.heads) if crosses else None
        if self.cross is not None:  # equal places compare as equal from the start
            self.cross.key.load_state_dict(self.cross.query.state_dict())
        self.feed_forward = FeedForward(sizes.size, sizes.hidden)
        self.norm, self.cross_norm, self.feed_norm = (nn.LayerNorm(sizes.size) for _ in range(3))

    def forward(self, states: Tensor, places: Tensor, memory: Tensor, memory_places: Tensor) -> Tensor:
        normed = self.norm(states)
        states = states + self.attention(normed, places, normed, places)
        if self.cross is not None:
            states = states + self.cross(self.cross_norm(states), places, memory, memory_places)
        answer: Tensor = states + self.feed_forward(self.feed_norm(states))
        return answer


class PlacedEncoder(nn.Module):
    """The half of a DETR that looks: convolutions, then blocks; [rows, places, size] of pixels."""

    places: Tensor

    def __init__(self, sizes: Width, image: int) -> None:
        super().__init__()
        self.stem = Stem(sizes.size)
        self.register_buffer("places", grid_sinusoids(image // STRIDE, sizes.size), persistent=False)
        self.encoder = nn.ModuleList(PlacedBlock(sizes, crosses=False) for _ in range(sizes.layers))
        self.memory_norm = nn.LayerNorm(sizes.size)

    def forward(self, pixels: Tensor) -> Tensor:
        memory = self.stem(pixels)
        for block in self.encoder:
            memory = block(memory, self.places, memory, self.places)
        states: Tensor = self.memory_norm(memory)
        return states
