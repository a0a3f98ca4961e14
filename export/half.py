"""fp16 for CUDA. Everything runs in half precision but what would lose by it: positions are computed in fp32, and
answers leave in fp32; so do inputs enter. Caches and cross-attention keys and values are fp16."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from export.constants import add_constant, array, constant
from export.optimise import remove_unused

_FULL, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_IN_FULL = {"CumSum", "Cos", "Exp", "GRU", "LSTM", "Log", "Pow", "Range", "Sin"}  # no kernels in half, or a loss
_UNTOUCHED_FROM = {"Resize": 1}  # inputs from here on have a type of their own


def halve(model: ir.Model, handed_on: Collection[str]) -> None:
    """In place. `handed_on` are the inputs and outputs that pass between graphs or steps: they become fp16."""
    graph = model.graph
    nodes = list(graph)
    casts = _Casts(graph)
    for value in graph.inputs:
        if value.dtype == _FULL and value.name in handed_on:
            value.dtype = _HALF
        elif value.dtype == _FULL and value.uses():  # a policy may leave inputs unread
            casts.enter(value)
    for node in nodes:
        wanted = _FULL if _runs_in_full(node) else _HALF
        for index, value in enumerate(node.inputs[: _UNTOUCHED_FROM.get(node.op_type)]):
            if value is not None and value.dtype in (_FULL, _HALF) and value.dtype != wanted:
                node.replace_input_with(index, casts.to(value, wanted, before=node))
        for value in node.outputs:
            if value.dtype == _FULL and wanted == _HALF and node.op_type != "Cast":
                value.dtype = _HALF
                if value.is_graph_output() and value.name not in handed_on:
                    casts.leave(value, _FULL, after=node)
            elif value.dtype == _FULL and value.is_graph_output() and value.name in handed_on:
                casts.leave(value, _HALF, after=node)
    remove_unused(model)


def _runs_in_full(node: ir.Node) -> bool:
    """Some operators always; others where everything they compute with already is."""
    if node.op_type in _IN_FULL:
        return True
    kinds = {value.dtype for value in node.inputs if value is not None and constant(value) is None}
    return _FULL in kinds and _HALF not in kinds


class _Casts:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def to(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        if (value, dtype) not in self.made:
            if constant(value) is not None:
                numbers = array(value)
                limit = np.finfo(np.float16).max
                name = f"{value.name}.half"
                self.made[value, dtype] = add_constant(
                    self.graph, name, np.clip(numbers, -limit, limit).astype(np.float16)
                )
            else:
                self.made[value, dtype] = self._cast(value, dtype)
                self.graph.insert_before(before, self.made[value, dtype].producer())
        return self.made[value, dtype]

    def enter(self, value: ir.Value) -> None:
        """An fp32 input is cast once, at its first use."""
        users = [usage.node for usage in value.uses()]
        cast = self._cast(value, _HALF)
        self.made[value, _HALF] = cast
        self.graph.insert_before(min(users, key=list(self.graph).index), cast.producer())
        for user in users:
            for index, used in enumerate(user.inputs):
                if used is value:
                    user.replace_input_with(index, cast)

    def leave(self, value: ir.Value, dtype: ir.DataType, after: ir.Node) -> None:
        """An output of another type is cast where it comes up; what follows from it is computed in the output's."""
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
