"""DETR (Carion et al. 2020): attention blocks that add position embeddings in every layer, and object queries."""

from __future__ import annotations

from math import ceil

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from headwaiter_export.zoo.layers.attention import PositionalAttention
from headwaiter_export.zoo.layers.blocks import FeedForward
from headwaiter_export.zoo.layers.image_embedding import STRIDE, ConvolutionalStem
from headwaiter_export.zoo.layers.positions import grid_sinusoids
from headwaiter_export.zoo.sizes import TransformerSizes

_BOX_SCALE = 8.0  # scales relative boxes to the range of the class scores


class PositionalBlock(nn.Module):
    """Self-attention and, in the decoder, cross-attention to the image."""

    def __init__(self, sizes: TransformerSizes, *, with_cross_attention: bool) -> None:
        super().__init__()
        self.attention = PositionalAttention(sizes.size, sizes.heads)
        self.cross = PositionalAttention(sizes.size, sizes.heads) if with_cross_attention else None
        if self.cross is not None:  # equal positions match from the start
            self.cross.key.load_state_dict(self.cross.query.state_dict())
        self.feed_forward = FeedForward(sizes.size, sizes.hidden)
        self.norm, self.cross_norm, self.feed_norm = (nn.LayerNorm(sizes.size) for _ in range(3))

    def forward(self, states: Tensor, positions: Tensor, memory: Tensor, memory_positions: Tensor) -> Tensor:
        normed = self.norm(states)
        states = states + self.attention(normed, positions, normed, positions)
        if self.cross is not None:
            states = states + self.cross(self.cross_norm(states), positions, memory, memory_positions)
        output: Tensor = states + self.feed_forward(self.feed_norm(states))
        return output


class DetrSizes(TransformerSizes):
    """`layers` counts the encoder layers."""

    image: int = Field(default=64, gt=0, multiple_of=STRIDE)
    classes: PositiveInt = 4
    queries: PositiveInt = 9
    decoder_layers: PositiveInt = 2

    @property
    def feature_size(self) -> int:
        """Numbers that describe one object: state, class scores and box."""
        return self.size + self.classes + 1 + 4


class DetrTransformer(nn.Module):
    """Convolutional stem, encoder, and queries that each detect one object. Queries and their anchor boxes are
    initialized on a grid over the image, so that they differ from the first step on."""

    positions: Tensor

    def __init__(self, sizes: DetrSizes) -> None:
        super().__init__()
        self.stem = ConvolutionalStem(sizes.size)
        self.register_buffer("positions", grid_sinusoids(sizes.image // STRIDE, sizes.size), persistent=False)
        self.encoder = nn.ModuleList(PositionalBlock(sizes, with_cross_attention=False) for _ in range(sizes.layers))
        self.queries = nn.Parameter(self._position_embeddings(grid_boxes(sizes.queries), sizes.image // STRIDE))
        self.decoder = nn.ModuleList(
            PositionalBlock(sizes, with_cross_attention=True) for _ in range(sizes.decoder_layers)
        )
        self.memory_norm, self.norm = nn.LayerNorm(sizes.size), nn.LayerNorm(sizes.size)
        self.classes = nn.Linear(sizes.size, sizes.classes + 1)
        self.boxes = nn.Sequential(nn.Linear(sizes.size, sizes.size), nn.ReLU(), nn.Linear(sizes.size, 4))
        self.anchors = nn.Parameter(grid_boxes(sizes.queries).logit())

    def _position_embeddings(self, anchors: Tensor, side: int) -> Tensor:
        """Position embeddings of the cells that contain the anchor centers."""
        column, row = (anchors[:, :2] * side).long().unbind(1)
        return self.positions[row * side + column]

    def layer_outputs(self, pixels: Tensor) -> list[Tensor]:
        """Return the states of the queries [rows, queries, size] after each decoder layer."""
        memory = self.stem(pixels)
        for block in self.encoder:
            memory = block(memory, self.positions, memory, self.positions)
        memory = self.memory_norm(memory)
        states, layer_outputs = self.queries.expand(pixels.shape[0], -1, -1), []
        for block in self.decoder:
            states = block(states, self.queries, memory, self.positions)
            layer_outputs.append(self.norm(states))
        return layer_outputs

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features [rows, queries, `feature_size`] of each query: state, class probabilities and box."""
        states = self.layer_outputs(pixels)[-1]
        scores, boxes = self.predict(states)
        return torch.cat([states, scores.softmax(-1), _BOX_SCALE * boxes], -1)

    def predict(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return class scores, the last class being "no object", and boxes relative to the image."""
        return self.classes(states), (self.boxes(states) + self.anchors).sigmoid()


def grid_boxes(count: int) -> Tensor:
    """Return `count` boxes [count, 4] on a grid, a quarter of the image wide and high."""
    side = ceil(count**0.5)
    cells = torch.stack([torch.arange(count) % side, torch.arange(count) // side], 1)
    return torch.cat([(cells + 0.5) / side, torch.full((count, 2), 0.25)], 1)
