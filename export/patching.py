"""Tracing tricks: parts of a library's model that are stood in for while a graph is traced, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@contextmanager
def replaced(owner: Any, name: str, substitute: Any) -> Iterator[None]:
    original = owner.__dict__.get(name)
    setattr(owner, name, substitute)
    try:
        yield
    finally:
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


@contextmanager
def plain_parts(model: nn.Module) -> Iterator[None]:
    """Parts that say in many operations what ONNX Runtime has one operator for."""
    with ExitStack() as exits:
        for module in model.modules():
            if (plain := _PLAIN.get(type(module).__name__)) is not None:
                exits.enter_context(replaced(module, "forward", partial(plain, module)))
        yield


def _tanh_gelu(_: nn.Module, states: Tensor) -> Tensor:
    return functional.gelu(states, approximate="tanh")


def _product(module: Any, states: Tensor) -> Tensor:
    return torch.matmul(states, module.weight) + module.bias


def _rms_norm(module: Any, states: Tensor) -> Tensor:
    return torch.onnx.ops.symbolic(
        "SimplifiedLayerNormalization",
        [states, module.weight],
        {"axis": -1, "epsilon": module.variance_epsilon, "stash_type": 1},
        dtype=states.dtype,
        shape=states.shape,
        version=1,
    )


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "NewGELUActivation": _tanh_gelu,
    "Conv1D": _product,
    "T5LayerNorm": _rms_norm,
}
