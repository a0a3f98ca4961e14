"""Long sequences in pieces of one length, each of which sees a few of its neighbours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from export.zoo.kit.masks import FAR


def filled_up(states: Tensor, chunk: int) -> Tensor:
    """[rows, length, size] with zeros up to a whole number of chunks. What is divided stays positive: graphs round
    towards zero, and Python does not."""
    length = states.shape[1]
    return pad(states, (0, 0, 0, (length + chunk - 1) // chunk * chunk - length))


def cut(heads: Tensor, chunk: int) -> Tensor:
    """[rows, heads, length, size] to [rows, heads, chunks, chunk, size]."""
    return heads.unflatten(2, (-1, chunk))


def with_neighbours(chunks: Tensor, before: int, after: int) -> Tensor:
    """Each chunk of [rows, heads, chunks, chunk, size] behind those before it and in front of those after it; zeros
    stand where there are none."""
    seen = torch.arange(chunks.shape[2])[:, None] + torch.arange(before + 1 + after)
    return pad(chunks, (0, 0, 0, 0, before, after))[:, :, seen].flatten(3, 4)


def places_seen(chunks: int, chunk: int, before: int, after: int) -> Tensor:
    """Where in the sequence stands what `with_neighbours` shows: [chunks, (before + 1 + after) · chunk]."""
    return torch.arange(chunks)[:, None] * chunk + torch.arange(-before * chunk, (1 + after) * chunk)


def hidden(places: Tensor, lengths: Tensor) -> Tensor:
    """A bias [rows, chunks, keys] that hides what is outside of the rows' lengths."""
    return torch.where((places < 0) | (places >= lengths[:, None, None]), FAR, 0.0)
