from __future__ import annotations

from math import ceil
from typing import ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from export.zoo.data.scenes import Scenes
from export.zoo.kit.images import STRIDE, Stem
from export.zoo.kit.placed import PlacedBlock
from export.zoo.kit.positions import grid_sinusoids
from export.zoo.model import Detector
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes, Width


class DetrSizes(Width):
    """`layers` of the encoder."""

    image: int = Field(default=64, gt=0, multiple_of=STRIDE)
    classes: PositiveInt = 4
    queries: PositiveInt = 9
    decoder_layers: PositiveInt = 2


@system(
    "detr",
    group="vision",
    paper="Carion et al. 2020, End-to-End Object Detection with Transformers",
    recipe=Recipe(Scenes, bar=0.8, steps=2500, batch=32, rate=2e-3),
)
class Detr(Detector):
    """Queries begin as places spread over the image, and boxes are changes of anchors there: they differ from the first
    step on."""

    Sizes: ClassVar[type[Sizes]] = DetrSizes
    places: Tensor

    def __init__(self, sizes: DetrSizes) -> None:
        super().__init__(sizes)
        self.stem = Stem(sizes.size)
        self.register_buffer("places", grid_sinusoids(sizes.image // STRIDE, sizes.size), persistent=False)
        self.encoder = nn.ModuleList(PlacedBlock(sizes, crosses=False) for _ in range(sizes.layers))
        self.queries = nn.Parameter(self._places_of(spread(sizes.queries)))
        self.decoder = nn.ModuleList(PlacedBlock(sizes, crosses=True) for _ in range(sizes.decoder_layers))
        self.memory_norm, self.norm = nn.LayerNorm(sizes.size), nn.LayerNorm(sizes.size)
        self.classes = nn.Linear(sizes.size, sizes.classes + 1)
        self.boxes = nn.Sequential(nn.Linear(sizes.size, sizes.size), nn.ReLU(), nn.Linear(sizes.size, 4))
        self.anchors = nn.Parameter(spread(sizes.queries).logit())

    def _places_of(self, anchors: Tensor) -> Tensor:
        """Of the cells in which the anchors have their centres."""
        side = self.sizes.image // STRIDE
        column, row = (anchors[:, :2] * side).long().unbind(1)
        return self.places[row * side + column]

    def guesses(self, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """One after each layer of the decoder."""
        memory = self.stem(pixels)
        for block in self.encoder:
            memory = block(memory, self.places, memory, self.places)
        memory = self.memory_norm(memory)
        states, guesses = self.queries.expand(pixels.shape[0], -1, -1), []
        for block in self.decoder:
            states = block(states, self.queries, memory, self.places)
            seen = self.norm(states)
            guesses.append((self.classes(seen), (self.boxes(seen) + self.anchors).sigmoid()))
        return guesses

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return self.guesses(pixels)[-1]


def spread(count: int) -> Tensor:
    """So many boxes [count, 4] of a quarter's width, on a grid."""
    side = ceil(count**0.5)
    cells = torch.stack([torch.arange(count) % side, torch.arange(count) // side], 1)
    return torch.cat([(cells + 0.5) / side, torch.full((count, 2), 0.25)], 1)
