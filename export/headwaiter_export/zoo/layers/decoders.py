"""Transformer decoders with causal self-attention and optional cross-attention."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from headwaiter_export.zoo.layers.attention import CausalAttention, CrossAttention
from headwaiter_export.zoo.layers.blocks import FeedForward
from headwaiter_export.zoo.model import AutoregressiveModel
from headwaiter_export.zoo.sizes import AutoregressiveSizes


class DecoderBlock(nn.Module):
    def __init__(self, size: int, heads: int, hidden: int, layer: int, *, with_cross_attention: bool) -> None:
        super().__init__()
        self.causal, self.feed_forward = CausalAttention(size, heads, layer), FeedForward(size, hidden)
        self.cross = CrossAttention(size, heads, layer) if with_cross_attention else None
        self.causal_norm, self.feed_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.cross_norm = nn.LayerNorm(size) if with_cross_attention else None

    def forward(self, states: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        states = states + self.causal(self.causal_norm(states))
        if self.cross is not None and self.cross_norm is not None:
            states = states + self.cross(self.cross_norm(states), memory, lengths)
        output: Tensor = states + self.feed_forward(self.feed_norm(states))
        return output


class TransformerDecoder(nn.Module):
    """Maps tokens and positions to hidden states. Input and output embeddings are tied."""

    def __init__(self, sizes: AutoregressiveSizes, positions: nn.Module, *, with_cross_attention: bool) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(sizes.vocabulary, sizes.size), positions
        nn.init.normal_(self.words.weight, std=sizes.size**-0.5)
        self.blocks = nn.ModuleList(
            DecoderBlock(sizes.size, sizes.heads, sizes.hidden, layer, with_cross_attention=with_cross_attention)
            for layer in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)

    @property
    def cross_attentions(self) -> list[CrossAttention]:
        return [block.cross for block in self.blocks if block.cross is not None]  # type: ignore[misc]

    def forward(self, tokens: Tensor, positions: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        states = self.words(tokens) * self.words.embedding_dim**0.5 + self.positions(positions)
        for block in self.blocks:
            states = block(states, memory, lengths)
        output: Tensor = self.norm(states)
        return output

    def logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self.words.weight)


class TransformerDecoderModel(AutoregressiveModel):
    """Autoregressive model with a transformer decoder."""

    decoder: TransformerDecoder

    def decode(self, tokens: Tensor, positions: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        states: Tensor = self.decoder(tokens, positions, memory, lengths)
        return states

    def logits(self, states: Tensor) -> Tensor:
        return self.decoder.logits(states)

    def cross_attentions(self) -> Sequence[CrossAttention]:
        return self.decoder.cross_attentions
