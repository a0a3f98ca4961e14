"""Carion et al. 2020: blocks whose attention knows places, which are added to what is compared in every layer anew."""

from __future__ import annotations

from math import ceil

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from export.zoo.kit.attention import PlacedAttention
from export.zoo.kit.blocks import FeedForward
from export.zoo.kit.images import STRIDE, Stem
from export.zoo.kit.positions import grid_sinusoids
from export.zoo.sizes import Width

_APART = 8.0  # boxes as shares of an image differ by little beside the scores of classes


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


class ObjectSizes(Width):
    """`layers` of the encoder."""

    image: int = Field(default=64, gt=0, multiple_of=STRIDE)
    classes: PositiveInt = 4
    queries: PositiveInt = 9
    decoder_layers: PositiveInt = 2

    @property
    def facts(self) -> int:
        """Numbers that tell of one object."""
        return self.size + self.classes + 1 + 4


class Objects(nn.Module):
    """Convolutions, an encoder, and queries that each look for one thing in the image. They begin as places spread over
    it, and boxes are changes of anchors there: they differ from the first step on."""

    places: Tensor

    def __init__(self, sizes: ObjectSizes) -> None:
        super().__init__()
        self.stem = Stem(sizes.size)
        self.register_buffer("places", grid_sinusoids(sizes.image // STRIDE, sizes.size), persistent=False)
        self.encoder = nn.ModuleList(PlacedBlock(sizes, crosses=False) for _ in range(sizes.layers))
        self.queries = nn.Parameter(self._places_of(spread(sizes.queries), sizes.image // STRIDE))
        self.decoder = nn.ModuleList(PlacedBlock(sizes, crosses=True) for _ in range(sizes.decoder_layers))
        self.memory_norm, self.norm = nn.LayerNorm(sizes.size), nn.LayerNorm(sizes.size)
        self.classes = nn.Linear(sizes.size, sizes.classes + 1)
        self.boxes = nn.Sequential(nn.Linear(sizes.size, sizes.size), nn.ReLU(), nn.Linear(sizes.size, 4))
        self.anchors = nn.Parameter(spread(sizes.queries).logit())

    def _places_of(self, anchors: Tensor, side: int) -> Tensor:
        """Of the cells in which the anchors have their centres."""
        column, row = (anchors[:, :2] * side).long().unbind(1)
        return self.places[row * side + column]

    def looks(self, pixels: Tensor) -> list[Tensor]:
        """States of the queries [rows, queries, size], after each layer of the decoder."""
        memory = self.stem(pixels)
        for block in self.encoder:
            memory = block(memory, self.places, memory, self.places)
        memory = self.memory_norm(memory)
        states, looks = self.queries.expand(pixels.shape[0], -1, -1), []
        for block in self.decoder:
            states = block(states, self.queries, memory, self.places)
            looks.append(self.norm(states))
        return looks

    def forward(self, pixels: Tensor) -> Tensor:
        """What each query sees [rows, queries, `facts`], for others to read: its state, what that is, and where."""
        seen = self.looks(pixels)[-1]
        scores, boxes = self.judged(seen)
        return torch.cat([seen, scores.softmax(-1), _APART * boxes], -1)

    def judged(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of classes, the last of them for nothing, and boxes as shares of the image."""
        return self.classes(seen), (self.boxes(seen) + self.anchors).sigmoid()


def spread(count: int) -> Tensor:
    """So many boxes [count, 4] of a quarter's width, on a grid."""
    side = ceil(count**0.5)
    cells = torch.stack([torch.arange(count) % side, torch.arange(count) // side], 1)
    return torch.cat([(cells + 0.5) / side, torch.full((count, 2), 0.25)], 1)
