from __future__ import annotations

from typing import Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from headwaiter_export.zoo.data.scenes import SceneCaptions
from headwaiter_export.zoo.layers.additive_attention import UNFUSABLE_REASON, AdditiveAttention
from headwaiter_export.zoo.layers.attention import KeyValue
from headwaiter_export.zoo.layers.image_embedding import STRIDE, ConvolutionalStem
from headwaiter_export.zoo.layers.recurrent import LstmCell
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.recurrent import EncoderOutput, RecurrentCaptioner, RecurrentSizes, States
from headwaiter_export.zoo.registry import architecture


class ShowAttendTellSizes(RecurrentSizes):
    image: PositiveInt = 64

    @model_validator(mode="after")
    def _check_image_size(self) -> Self:
        if self.image % STRIDE:
            raise ValueError(f"image is {self.image}; it must be a multiple of {STRIDE}")
        return self


@architecture(
    "show-attend-tell",
    group="captioning",
    paper="Xu et al. 2015, Show, Attend and Tell: Neural Image Caption Generation with Visual Attention",
    recipe=Recipe(
        SceneCaptions,
        target=0.9,
        steps=1200,
        learning_rate=2e-3,
        options={"image": 48, "shapes": 2},
        sizes={"size": 64},
    ),
)
class ShowAttendTell(RecurrentCaptioner):
    """A convolutional encoder and an LSTM decoder that attends to image positions before each token. Position
    embeddings are added, which the paper's deeper network does not need."""

    Sizes = ShowAttendTellSizes
    no_fused_operator_reason = UNFUSABLE_REASON

    def __init__(self, sizes: ShowAttendTellSizes) -> None:
        super().__init__(sizes)
        size = sizes.size
        self.features = ConvolutionalStem(size)
        self.positions = nn.Parameter(torch.randn((sizes.image // STRIDE) ** 2, size) * 0.02)
        self.norm = nn.LayerNorm(size)
        self.first = nn.Linear(size, 2 * size)
        self.attention = AdditiveAttention(size, size, size)
        self.gate = nn.Linear(size, size)
        self.words = nn.Embedding(sizes.vocabulary, size)
        self.cell = LstmCell(2 * size, size)
        self.from_hidden, self.from_context = nn.Linear(size, size), nn.Linear(size, size)
        self.head = nn.Linear(size, sizes.vocabulary)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"hidden": (self.sizes.size,), "cell": (self.sizes.size,)}

    def cross_attention(self) -> AdditiveAttention:
        return self.attention

    def encode(self, pixels: Tensor) -> EncoderOutput:
        """The initial states are computed from the mean of the positions."""
        memory = self.norm(self.features(pixels) + self.positions)
        hidden, cell = self.first(memory.mean(1)).tanh().chunk(2, 1)
        return EncoderOutput({"hidden": hidden, "cell": cell}, memory)

    def step(
        self, tokens: Tensor, states: States, keys_values: KeyValue | None, lengths: Tensor | None
    ) -> tuple[Tensor, States]:
        assert keys_values is not None
        embeddings = self.words(tokens)
        context = self.gate(states["hidden"]).sigmoid() * self.attention(states["hidden"], keys_values, lengths)
        hidden, cell = self.cell(torch.cat([embeddings, context], 1), states["hidden"], states["cell"])
        output = embeddings + self.from_hidden(hidden) + self.from_context(context)
        return output, {"hidden": hidden, "cell": cell}
