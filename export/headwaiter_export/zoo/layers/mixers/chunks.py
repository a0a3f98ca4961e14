"""Chunked sequences in which each chunk attends to its neighbours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwaiter_export.zoo.layers.masks import MASK_BIAS


def pad_to_multiple(states: Tensor, chunk: int) -> Tensor:
    """Zero-pad [rows, length, size] to a multiple of `chunk`. The dividend stays positive because ONNX rounds integer
    division towards zero and Python does not."""
    length = states.shape[1]
    return pad(states, (0, 0, 0, (length + chunk - 1) // chunk * chunk - length))


def split_chunks(heads: Tensor, chunk: int) -> Tensor:
    """Reshape [rows, heads, length, size] to [rows, heads, chunks, chunk, size]."""
    return heads.unflatten(2, (-1, chunk))


def concat_neighbours(chunks: Tensor, before: int, after: int) -> Tensor:
    """Concatenate each chunk of [rows, heads, chunks, chunk, size] with the `before` chunks preceding it and the
    `after` chunks following it; missing chunks are zeros."""
    indices = torch.arange(chunks.shape[2])[:, None] + torch.arange(before + 1 + after)
    return pad(chunks, (0, 0, 0, 0, before, after))[:, :, indices].flatten(3, 4)


def key_positions(chunks: int, chunk: int, before: int, after: int) -> Tensor:
    """Sequence positions of the output of `concat_neighbours`: [chunks, (before + 1 + after) · chunk]."""
    return torch.arange(chunks)[:, None] * chunk + torch.arange(-before * chunk, (1 + after) * chunk)


def out_of_range_bias(positions: Tensor, lengths: Tensor) -> Tensor:
    """Bias [rows, chunks, keys] that masks positions outside each row's length."""
    return torch.where((positions < 0) | (positions >= lengths[:, None, None]), MASK_BIAS, 0.0)
