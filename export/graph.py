"""A graph to be: a torch module, the ports it speaks through, and how it becomes an ONNX graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from export.optimise import fold_transposes

OPSET = 20
_TRACING_SIZES = {"rows": 2, "length": 6, "source": 7, "steps": 3, "room": 19, "height": 96, "width": 128}


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output. Axes are names where they vary from call to call, numbers where they do not."""

    dtype: torch.dtype
    axes: tuple[str | int, ...]

    def example(self) -> Tensor:
        sizes = [axis if isinstance(axis, int) else _TRACING_SIZES[axis] for axis in self.axes]
        return torch.ones(sizes, dtype=self.dtype)

    def dynamic(self) -> dict[int, str]:
        return {index: axis for index, axis in enumerate(self.axes) if isinstance(axis, str)}


@dataclass(frozen=True, slots=True)
class State:
    """An input that comes back as an output for the next step. `append` grows in place, `replace` is swapped whole."""

    input: str
    output: str
    kind: str = "append"


@dataclass(frozen=True, slots=True)
class Graph:
    name: str
    module: nn.Module  # forward(dict of input tensors) -> dict of output tensors
    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    states: tuple[State, ...] = ()


def trace(graph: Graph) -> ir.Model:
    """The graph in ONNX, weights still in torch's memory, inputs and outputs under the names of their ports."""
    example = {name: port.example() for name, port in graph.inputs.items()}
    dynamic = {name: port.dynamic() for name, port in graph.inputs.items()}
    order, _ = pytree.tree_flatten({name: name for name in graph.inputs})
    with torch.no_grad(), _quietly():
        program = torch.onnx.export(
            _InOrder(graph),
            kwargs={"inputs": example},
            dynamo=True,
            opset_version=OPSET,
            input_names=order,
            output_names=list(graph.outputs),
            dynamic_shapes={"inputs": dynamic},
            verbose=False,
            optimize=False,
        )
        assert program is not None
        fold_transposes(program.model.graph)  # before the exporter does it under names that say nothing
        program.optimize()
    model: ir.Model = program.model
    for value, (name, port) in zip(model.graph.outputs, graph.outputs.items(), strict=True):
        value.name, value.shape = name, ir.Shape(port.axes)
    for value in model.graph.inputs:
        value.shape = ir.Shape(graph.inputs[str(value.name)].axes)
    return model


class _InOrder(nn.Module):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.inner = graph.module
        self.names = tuple(graph.outputs)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        outputs = self.inner(inputs)
        return tuple(outputs[name] for name in self.names)


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter warns about its own internals, at length; what matters is checked by parity."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
