"""Softmax attention: plain products while learning, one fused operator while a graph is traced."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from export import attention as fused
from export.zoo.kit.masks import FAR, outside

Pair = tuple[Tensor, Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """[rows, heads, length, size] each; back come [rows, length, heads · size].

    `lengths` [rows] says how many keys of each row are real, `bias` is added to the scores.
    """
    scale = query.shape[3] ** -0.5 if scale is None else scale
    if fused.scene() is not None:
        return fused.bidirectional(query, key, value, scale=scale, lengths=lengths, bias=bias).flatten(2)
    scores = scale * query @ key.transpose(2, 3)
    if bias is not None:
        scores = scores + bias
    if lengths is not None:
        scores = scores.masked_fill(outside(lengths, key.shape[2])[:, None, None], FAR)
    return joined(scores.softmax(-1) @ value)


def split(states: Tensor, heads: int) -> Tensor:
    """[rows, length, heads · size] to [rows, heads, length, size]."""
    return states.unflatten(2, (heads, -1)).transpose(1, 2)


def joined(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


class Projections(nn.Module):
    """The four products around attention: queries, keys and values in, answers out."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))

    def questions(self, states: Tensor) -> Tensor:
        return split(self.query(states), self.heads)

    def memories(self, states: Tensor) -> Pair:
        return split(self.key(states), self.heads), split(self.value(states), self.heads)

    def answer(self, seen: Tensor) -> Tensor:
        states: Tensor = self.out(seen)
        return states


class SelfAttention(Projections):
    """Vaswani et al. 2017: every token sees every real token of its row."""

    def forward(self, states: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return self.answer(attend(self.questions(states), *self.memories(states), lengths=lengths, bias=bias))


class CrossAttention(Projections):
    """Queries from one sequence, keys and values from another. While a decoder is traced, its layers take them from the
    scene, where they were computed once by the encoder's graph."""

    def __init__(self, size: int, heads: int, layer: int | None = None) -> None:
        super().__init__(size, heads)
        self.layer = layer

    def forward(self, states: Tensor, memory: Tensor, lengths: Tensor | None = None) -> Tensor:
        scene, query = fused.scene(), self.questions(states)
        if scene is not None and scene.cross and self.layer is not None:
            pair, scale = scene.cross[self.layer], query.shape[3] ** -0.5
            seen = fused.across(query, *pair, scale=scale, lengths=scene.source_lengths).flatten(2)
        else:
            seen = attend(query, *self.memories(memory), lengths=lengths)
        return self.answer(seen)


class PlacedAttention(Projections):
    """Carion et al. 2020: places are added to what is compared, not to what is taken."""

    def forward(self, states: Tensor, places: Tensor, memory: Tensor, memory_places: Tensor) -> Tensor:
        key, value = split(self.key(memory + memory_places), self.heads), split(self.value(memory), self.heads)
        return self.answer(attend(self.questions(states + places), key, value))


class CausalAttention(Projections):
    """Tokens see themselves and those before them; while traced, also the cached past.

    Nobody sees tokens that are `unread` [rows, length]. The operator over a cache knows no mask of keys, so each key
    then carries one number more, which the queries' additional one turns into a score that leaves nothing: the cache
    must have heads of that size.
    """

    def __init__(self, size: int, heads: int, layer: int) -> None:
        super().__init__(size, heads)
        self.layer = layer

    def forward(self, states: Tensor, unread: Tensor | None = None) -> Tensor:
        query, (key, value) = self.questions(states), self.memories(states)
        size, scene = query.shape[3], fused.scene()
        scores = None if unread is None else (FAR * unread.to(key.dtype))[:, None]
        if scene is None:
            bias = future(states.shape[1])
            return self.answer(attend(query, key, value, bias=bias if scores is None else bias + scores[:, None]))
        if scores is not None:
            query, value = pad(query, (0, 1), value=1.0), pad(value, (0, 1))
            key = torch.cat([key, scores[..., None].expand(-1, self.heads, -1, -1)], 3)
        assert scene.last is not None
        assert scene.total is not None
        seen, scene.present[self.layer] = fused.causal(
            query,
            key,
            value,
            scene.past[self.layer],
            last=scene.last,
            total=scene.total,
            scale=size**-0.5,
        )
        return self.answer(seen[..., :size].flatten(2))


def future(length: int) -> Tensor:
    """A bias that hides what comes later."""
    return torch.full((length, length), FAR).triu(1)
