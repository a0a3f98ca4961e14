from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from headwaiter_export.zoo.layers.attention import attend, merge_heads, split_heads
from headwaiter_export.zoo.layers.masks import MASK_BIAS, padding_mask
from headwaiter_export.zoo.layers.mixers.chunks import (
    concat_neighbours,
    key_positions,
    out_of_range_bias,
    pad_to_multiple,
    split_chunks,
)


class ReformerMixer(nn.Module):
    """Kitaev et al. 2020: tokens are sorted by a locality-sensitive hash, and each chunk of the sorted sequence attends
    to itself and to the previous chunk.

    Queries are also keys, normalized to length one; a token attends to itself only if it has no other token to attend
    to. Each round and each head hashes with its own rotation. The rounds are averaged; the paper weights them by their
    softmax normalizer, which the fused operator does not return.
    """

    rotations: Tensor
    self_bias: Tensor

    def __init__(self, size: int, heads: int, buckets: int, chunk: int, rounds: int = 1) -> None:
        super().__init__()
        self.heads, self.chunk, self.buckets, self.rounds = heads, chunk, buckets, rounds
        self.query, self.value, self.out = (nn.Linear(size, size) for _ in range(3))
        self.register_buffer("rotations", torch.randn(rounds * heads, size // heads, buckets // 2))
        diagonal = torch.eye(chunk) * MASK_BIAS / 2  # weaker than MASK_BIAS
        self.register_buffer("self_bias", torch.cat([torch.zeros(chunk, chunk), diagonal], 1), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows, length, _ = states.shape
        if lengths is None:
            lengths = torch.full((rows,), length)
        states = pad_to_multiple(states, self.chunk)
        query, value = self._repeat_rounds(self.query(states)), self._repeat_rounds(self.value(states))
        order = self.order(query, lengths)
        attended = _gather(
            self._chunk_attention(_gather(query, order), _gather(value, order), lengths), order.argsort(2)
        )
        output: Tensor = self.out(merge_heads(attended.unflatten(1, (self.rounds, -1)).mean(1))[:, :length])
        return output

    def _repeat_rounds(self, states: Tensor) -> Tensor:
        """Repeat the heads for each round: [rows, rounds · heads, length, size]."""
        return split_heads(states, self.heads).repeat(1, self.rounds, 1, 1)

    def hashes(self, heads: Tensor) -> Tensor:
        """Return the bucket of each vector in [rows, heads, length, size]: its nearest random direction."""
        rotated = heads @ self.rotations
        return torch.cat([rotated, -rotated], 3).argmax(3)

    def order(self, heads: Tensor, lengths: Tensor) -> Tensor:
        """Return positions [rows, heads, length] sorted by bucket, then by position; padding comes last."""
        length = heads.shape[2]
        buckets = self.hashes(heads).masked_fill(padding_mask(lengths, length)[:, None], self.buckets)
        return (buckets * length + torch.arange(length)).argsort(2)

    def _chunk_attention(self, query: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
        """Heads are folded into the rows because each has its own order."""
        rows, heads, length, size = query.shape
        chunks = [split_chunks(part, self.chunk) for part in (query, normalize(query, dim=3), value)]
        queries, keys, values = chunks[0], *(concat_neighbours(part, 1, 0) for part in chunks[1:])
        padding_bias = out_of_range_bias(key_positions(queries.shape[2], self.chunk, 1, 0), lengths)[:, None, :, None]
        bias = (padding_bias + self.self_bias).expand(-1, heads, -1, -1, -1).flatten(0, 2)[:, None]
        attended = attend(*(part.flatten(0, 2)[:, None] for part in (queries, keys, values)), bias=bias, scale=1.0)
        return attended.reshape(rows, heads, length, size)


def _gather(heads: Tensor, order: Tensor) -> Tensor:
    return heads.gather(2, order[..., None].expand(-1, -1, -1, heads.shape[3]))
