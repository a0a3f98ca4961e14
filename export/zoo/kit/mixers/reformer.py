from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from export.zoo.kit.attention import attend, joined, split
from export.zoo.kit.masks import FAR, outside
from export.zoo.kit.mixers.chunks import cut, filled_up, hidden, places_seen, with_neighbours


class ReformerMixer(nn.Module):
    """Kitaev et al. 2020: tokens are sorted by a hash that near vectors share, and attention stays within chunks of the
    sorted row: each sees itself and the one before. Queries are keys too, of length one, and a token sees itself only
    where it would otherwise see nothing. Rounds hash with rotations of their own, as heads do. What they see counts
    alike; the paper weighs it by how near it was, which the fused operator does not tell."""

    rotations: Tensor
    itself: Tensor

    def __init__(self, size: int, heads: int, buckets: int, chunk: int, rounds: int = 1) -> None:
        super().__init__()
        self.heads, self.chunk, self.buckets, self.rounds = heads, chunk, buckets, rounds
        self.query, self.value, self.out = (nn.Linear(size, size) for _ in range(3))
        self.register_buffer("rotations", torch.randn(rounds * heads, size // heads, buckets // 2))
        own = torch.eye(chunk) * FAR / 2  # nearer than what is hidden
        self.register_buffer("itself", torch.cat([torch.zeros(chunk, chunk), own], 1), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows, length, _ = states.shape
        if lengths is None:
            lengths = torch.full((rows,), length)
        states = filled_up(states, self.chunk)
        query, value = self._in_rounds(self.query(states)), self._in_rounds(self.value(states))
        order = self.order(query, lengths)
        seen = _taken(self._within_chunks(_taken(query, order), _taken(value, order), lengths), order.argsort(2))
        answer: Tensor = self.out(joined(seen.unflatten(1, (self.rounds, -1)).mean(1))[:, :length])
        return answer

    def _in_rounds(self, states: Tensor) -> Tensor:
        """[rows, rounds · heads, length, size]: to each round the same."""
        return split(states, self.heads).repeat(1, self.rounds, 1, 1)

    def hashes(self, heads: Tensor) -> Tensor:
        """The bucket of each vector in [rows, heads, length, size]: the nearest of so many random directions."""
        rotated = heads @ self.rotations
        return torch.cat([rotated, -rotated], 3).argmax(3)

    def order(self, heads: Tensor, lengths: Tensor) -> Tensor:
        """Places [rows, heads, length] sorted by bucket, then by place; what is not real comes last."""
        length = heads.shape[2]
        buckets = self.hashes(heads).masked_fill(outside(lengths, length)[:, None], self.buckets)
        return (buckets * length + torch.arange(length)).argsort(2)

    def _within_chunks(self, query: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
        """Heads are sorted each in its own way, so they count as rows."""
        rows, heads, length, size = query.shape
        chunks = [cut(each, self.chunk) for each in (query, normalize(query, dim=3), value)]
        queries, keys, values = chunks[0], *(with_neighbours(each, 1, 0) for each in chunks[1:])
        beyond = hidden(places_seen(queries.shape[2], self.chunk, 1, 0), lengths)[:, None, :, None]
        bias = (beyond + self.itself).expand(-1, heads, -1, -1, -1).flatten(0, 2)[:, None]
        seen = attend(*(each.flatten(0, 2)[:, None] for each in (queries, keys, values)), bias=bias, scale=1.0)
        return seen.reshape(rows, heads, length, size)


def _taken(heads: Tensor, order: Tensor) -> Tensor:
    return heads.gather(2, order[..., None].expand(-1, -1, -1, heads.shape[3]))
