"""Replacements for parts of Hugging Face models that are active only while a graph is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@contextmanager
def patched_attribute(owner: Any, name: str, substitute: Any) -> Iterator[None]:
    """Set an instance attribute and restore the previous value on exit."""
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
def simplified_modules(model: nn.Module) -> Iterator[None]:
    """Replace modules made of many operations by the single operator that ONNX Runtime has for them."""
    with ExitStack() as stack:
        for module in model.modules():
            if (simplified_forward := _SIMPLIFIED_FORWARDS.get(type(module).__name__)) is not None:
                stack.enter_context(patched_attribute(module, "forward", partial(simplified_forward, module)))
        yield


def _tanh_gelu(_: nn.Module, states: Tensor) -> Tensor:
    return functional.gelu(states, approximate="tanh")


def _conv1d(module: Any, states: Tensor) -> Tensor:
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


_SIMPLIFIED_FORWARDS: dict[str, Callable[..., Tensor]] = {
    "NewGELUActivation": _tanh_gelu,
    "Conv1D": _conv1d,
    "T5LayerNorm": _rms_norm,
}
