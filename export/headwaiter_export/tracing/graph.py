"""Graph specifications (a torch module with named inputs and outputs) and their tracing to ONNX."""

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

from headwaiter_export.errors import ExportError
from headwaiter_export.passes.optimise import fold_transposes

OPSET = 20
_TRACING_SIZES = {"rows": 2, "length": 6, "source": 7, "steps": 3, "max_length": 19, "height": 96, "width": 128}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and shape of an input or output. Dynamic axes are names, fixed axes are sizes."""

    dtype: torch.dtype
    axes: tuple[str | int, ...]

    def example(self) -> Tensor:
        """Return a tensor of ones with tracing sizes for the dynamic axes."""
        sizes = [axis if isinstance(axis, int) else _TRACING_SIZES[axis] for axis in self.axes]
        return torch.ones(sizes, dtype=self.dtype)

    def dynamic_axes(self) -> dict[int, str]:
        return {index: axis for index, axis in enumerate(self.axes) if isinstance(axis, str)}


@dataclass(frozen=True, slots=True)
class StateBinding:
    """A decoder input whose next value is an output.

    A state of kind "append" grows in place, a state of kind "replace" is replaced completely in each step.
    """

    input: str
    output: str
    kind: str = "append"


@dataclass(frozen=True, slots=True)
class GraphSpec:
    name: str
    module: nn.Module  # forward(dict of input tensors) -> dict of output tensors
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    states: tuple[StateBinding, ...] = ()


def trace(graph: GraphSpec) -> ir.Model:
    """Trace a graph to ONNX with the input and output names of its specification. The weights stay in torch memory.

    Raises `ExportError` if attention cannot be represented by the fused operators.
    """
    example = {name: spec.example() for name, spec in graph.inputs.items()}
    dynamic_axes = {name: spec.dynamic_axes() for name, spec in graph.inputs.items()}
    input_names, _ = pytree.tree_flatten({name: name for name in graph.inputs})
    with torch.no_grad(), _silence_exporter(), _unwrapped_export_errors():
        program = torch.onnx.export(
            _OrderedOutputs(graph),
            kwargs={"inputs": example},
            dynamo=True,
            opset_version=OPSET,
            input_names=input_names,
            output_names=list(graph.outputs),
            dynamic_shapes={"inputs": dynamic_axes},
            verbose=False,
            optimize=False,
        )
        assert program is not None
        fold_transposes(program.model.graph)  # before the exporter folds them under generated names
        program.optimize()
    model: ir.Model = program.model
    for value, (name, spec) in zip(model.graph.outputs, graph.outputs.items(), strict=True):
        value.name, value.shape = name, ir.Shape(spec.axes)
    for value in model.graph.inputs:
        value.shape = ir.Shape(graph.inputs[str(value.name)].axes)
    return model


class _OrderedOutputs(nn.Module):
    def __init__(self, graph: GraphSpec) -> None:
        super().__init__()
        self.inner = graph.module
        self.names = tuple(graph.outputs)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        outputs = self.inner(inputs)
        return tuple(outputs[name] for name in self.names)


@contextmanager
def _unwrapped_export_errors() -> Iterator[None]:
    """Raise our own error instead of the exporter's, which holds it in its chain of causes."""
    try:
        yield
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ExportError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        raise


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress warnings of the exporter about its internals; correctness is verified by the parity checks."""
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
