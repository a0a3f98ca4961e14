"""Conversion to fp16 for CUDA devices.

Inputs and outputs stay fp32, except caches and cross-attention keys and values. Operators without an fp16 kernel, or
that lose too much precision in fp16, run in fp32.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from headwaiter_export.passes.constants import add_constant, array, constant
from headwaiter_export.passes.optimise import remove_unused

_FP32, _FP16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
_FP32_OPERATORS = {
    "CumSum",
    "Cos",
    "Exp",
    "GRU",
    "LSTM",
    "Log",
    "Pow",
    "Range",
    "Sin",
}  # no fp16 kernel, or loss of precision
_FIRST_UNCAST_INPUT = {"Resize": 1}  # inputs from this index on have fixed types


def convert_to_fp16(model: ir.Model, fp16_io_names: Collection[str]) -> None:
    """Convert in place. `fp16_io_names` are inputs and outputs passed between graphs or steps, which become fp16."""
    graph = model.graph
    nodes = list(graph)
    casts = _CastInserter(graph)
    for value in graph.inputs:
        if value.dtype == _FP32 and value.name in fp16_io_names:
            value.dtype = _FP16
        elif value.dtype == _FP32 and value.uses():  # a policy may not use all inputs
            casts.cast_input(value)
    for node in nodes:
        target_dtype = _FP32 if _runs_in_fp32(node) else _FP16
        for index, value in enumerate(node.inputs[: _FIRST_UNCAST_INPUT.get(node.op_type)]):
            if value is not None and value.dtype in (_FP32, _FP16) and value.dtype != target_dtype:
                node.replace_input_with(index, casts.cast_to(value, target_dtype, before=node))
        for value in node.outputs:
            if value.dtype == _FP32 and target_dtype == _FP16 and node.op_type != "Cast":
                value.dtype = _FP16
                if value.is_graph_output() and value.name not in fp16_io_names:
                    casts.cast_output(value, _FP32, after=node)
            elif value.dtype == _FP32 and value.is_graph_output() and value.name in fp16_io_names:
                casts.cast_output(value, _FP16, after=node)
    remove_unused(model)


def _runs_in_fp32(node: ir.Node) -> bool:
    """Return whether the operator requires fp32, or all its non-constant float inputs are fp32."""
    if node.op_type in _FP32_OPERATORS:
        return True
    dtypes = {value.dtype for value in node.inputs if value is not None and constant(value) is None}
    return _FP32 in dtypes and _FP16 not in dtypes


class _CastInserter:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.inserted: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def cast_to(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        if (value, dtype) not in self.inserted:
            if constant(value) is not None:
                limit = np.finfo(np.float16).max
                content = np.clip(array(value), -limit, limit).astype(np.float16)
                self.inserted[value, dtype] = add_constant(self.graph, f"{value.name}.half", content)
            else:
                self.inserted[value, dtype] = self._cast(value, dtype)
                self.graph.insert_before(before, self.inserted[value, dtype].producer())
        return self.inserted[value, dtype]

    def cast_input(self, value: ir.Value) -> None:
        """Cast an fp32 input to fp16 once, before its first use."""
        users = [usage.node for usage in value.uses()]
        cast = self._cast(value, _FP16)
        self.inserted[value, _FP16] = cast
        self.graph.insert_before(min(users, key=list(self.graph).index), cast.producer())
        for user in users:
            for index, used in enumerate(user.inputs):
                if used is value:
                    user.replace_input_with(index, cast)

    def cast_output(self, value: ir.Value, dtype: ir.DataType, after: ir.Node) -> None:
        """Cast a graph output after its producer; nodes that use it read the cast value."""
        cast = self._cast(value, dtype)
        name, shape = value.name, value.shape
        ir.convenience.replace_all_uses_with(value, cast, replace_graph_outputs=True)
        producer = cast.producer()
        producer.replace_input_with(0, value)
        self.graph.insert_after(after, producer)
        value.name, value.shape = f"{name}.inner", None
        cast.name, cast.shape = name, shape

    @staticmethod
    def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Value:
        node = ir.node("Cast", [value], {"to": dtype})
        node.outputs[0].dtype = dtype
        return node.outputs[0]
