"""Transformer decoders: causal over what was written, and across to what was read, where there is something."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from export.zoo.kit.attention import CausalAttention, CrossAttention
from export.zoo.kit.blocks import FeedForward
from export.zoo.model import Writer
from export.zoo.sizes import WriterSizes


class DecoderBlock(nn.Module):
    def __init__(self, size: int, heads: int, hidden: int, layer: int, *, crosses: bool) -> None:
        super().__init__()
        self.causal, self.feed_forward = CausalAttention(size, heads, layer), FeedForward(size, hidden)
        self.cross = CrossAttention(size, heads, layer) if crosses else None
        self.causal_norm, self.feed_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.cross_norm = nn.LayerNorm(size) if crosses else None

    def forward(self, states: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        states = states + self.causal(self.causal_norm(states))
        if self.cross is not None and self.cross_norm is not None:
            states = states + self.cross(self.cross_norm(states), memory, lengths)
        answer: Tensor = states + self.feed_forward(self.feed_norm(states))
        return answer


class WordDecoder(nn.Module):
    """Tokens at given positions to states; the table of words is also what states are compared with."""

    def __init__(self, sizes: WriterSizes, positions: nn.Module, *, crosses: bool) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(sizes.vocabulary, sizes.size), positions
        nn.init.normal_(self.words.weight, std=sizes.size**-0.5)
        self.blocks = nn.ModuleList(
            DecoderBlock(sizes.size, sizes.heads, sizes.hidden, layer, crosses=crosses) for layer in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)

    @property
    def crossings(self) -> list[CrossAttention]:
        return [block.cross for block in self.blocks if block.cross is not None]  # type: ignore[misc]

    def forward(self, tokens: Tensor, positions: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        states = self.words(tokens) * self.words.embedding_dim**0.5 + self.positions(positions)
        for block in self.blocks:
            states = block(states, memory, lengths)
        answer: Tensor = self.norm(states)
        return answer

    def logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self.words.weight)


class ByDecoder(Writer):
    """Writers whose words come from a transformer decoder."""

    decoder: WordDecoder

    def decode(self, tokens: Tensor, positions: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        states: Tensor = self.decoder(tokens, positions, memory, lengths)
        return states

    def logits(self, states: Tensor) -> Tensor:
        return self.decoder.logits(states)

    def crossings(self) -> Sequence[CrossAttention]:
        return self.decoder.crossings
