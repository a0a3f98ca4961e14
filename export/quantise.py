"""int8 for CPUs: weights in 8 bits with a scale per output channel, activations with a scale per row.

A scale per row makes an answer independent of its neighbours in the batch, which a scale per tensor does not. Weights
are signed: kernels for unsigned ones are slower. Where there is no VNNI, the products of two neighbouring weights are
added in 16 bits: a channel's scale is such that no two can overflow, which costs less than the whole bit that is
usually given up for it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from export.constants import add_constant, array, constant
from export.optimise import remove_unused

_LIMIT = 127
_MIDDLE = 128  # of activations, which are unsigned
_PAIR_LIMIT = np.iinfo(np.int16).max // (_LIMIT + _MIDDLE) - 1  # of two neighbours' sum, one left for rounding
_TINY = np.float32(1e-20)  # a row of zeros stays one
_SMALLEST = 1 << 10  # elements: smaller weights are not worth the extra nodes


def quantise(model: ir.Model) -> None:
    """In place. Products and vocabulary tables become int8; convolutions only store their weights so."""
    graph = model.graph
    rewrite = _Rewrite(graph)
    for node in list(graph):
        if node.op_type == "MatMul":
            rewrite.product(node, node.inputs[1], transposed=False, bias=None)
        elif node.op_type == "Gemm" and _is_plain(node):
            bias = node.inputs[2] if len(node.inputs) > 2 else None
            rewrite.product(node, node.inputs[1], transposed=_flag(node, "transB"), bias=bias)
        elif node.op_type == "Gather" and node.attributes["axis"].as_int() == 0:
            rewrite.lookup(node)
        elif node.op_type == "Conv":
            rewrite.convolution(node)
    remove_unused(model)
    model.opset_imports["com.microsoft"] = 1


class _Rewrite:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.rows: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self.weights: dict[tuple[ir.Value, int], tuple[ir.Value, ir.Value]] = {}

    def product(self, node: ir.Node, weight: ir.Value | None, *, transposed: bool, bias: ir.Value | None) -> None:
        weight = constant(weight)
        if weight is None or not _is_worth_it(weight):
            return
        before = _Before(self.graph, node)
        quantised, scale = self._weight(weight, axis=0 if transposed else 1)
        if transposed:  # the runtime folds it when it loads the graph; on disk the table is shared with the lookup
            quantised = before.add("Transpose", [quantised], perm=[1, 0])
        values, largest = self._rows(before, node.inputs[0])
        step, middle = self._scalar("step", np.float32(1 / _LIMIT)), self._middle()
        product = before.add("MatMulIntegerToFloat", [values, quantised, step, scale, middle], domain="com.microsoft")
        result = before.add("Mul", [product, largest])
        if bias is not None:
            result = before.add("Add", [result, bias])
        before.instead(result)

    def lookup(self, node: ir.Node) -> None:
        table = constant(node.inputs[0])
        if table is None or not _is_worth_it(table):
            return
        before = _Before(self.graph, node)
        quantised, scale = self._weight(table, axis=0)
        index = node.inputs[1]
        values = before.add("Cast", [before.add("Gather", [quantised, index], axis=0)], to=ir.DataType.FLOAT)
        column = add_constant(self.graph, f"{scale.name}.column", array(scale).reshape(-1, 1))
        before.instead(before.add("Mul", [values, before.add("Gather", [column, index], axis=0)]))

    def convolution(self, node: ir.Node) -> None:
        weight = constant(node.inputs[1])
        if weight is None or array(weight).size < _SMALLEST:
            return
        before = _Before(self.graph, node)
        quantised, scale = self._weight(weight, axis=0, multiplied=False)
        node.replace_input_with(1, before.add("DequantizeLinear", [quantised, scale], axis=0))

    def _rows(self, before: _Before, values: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """Each row as bytes around 128, and its largest magnitude."""
        assert values is not None
        if values not in self.rows:
            last = add_constant(self.graph, "last_axis", np.array([-1]))
            largest = before.add("ReduceMax", [before.add("Abs", [values]), last], keepdims=1)
            largest = before.add("Max", [largest, self._scalar("tiny", _TINY)])
            shares = before.add("Div", [values, largest])
            step = self._scalar("step", np.float32(1 / _LIMIT))
            self.rows[values] = before.add("QuantizeLinear", [shares, step, self._middle()]), largest
        return self.rows[values]

    def _weight(self, weight: ir.Value, axis: int, *, multiplied: bool = True) -> tuple[ir.Value, ir.Value]:
        """The weight as bytes, and the scale of each channel along the axis. `multiplied` are those of products."""
        if (weight, axis) not in self.weights:
            values = array(weight).astype(np.float32)
            scale = np.expand_dims(
                _scale(np.moveaxis(values, axis, 0), multiplied=multiplied), tuple(range(1, values.ndim))
            )
            scale = np.moveaxis(scale, 0, axis)
            quantised = np.rint(values / scale).astype(np.int8)
            self.weights[weight, axis] = (
                add_constant(self.graph, f"{weight.name}.int8", quantised),
                add_constant(self.graph, f"{weight.name}.scale", scale.reshape(-1).astype(np.float32)),
            )
        return self.weights[weight, axis]

    def _scalar(self, name: str, value: np.generic) -> ir.Value:
        return add_constant(self.graph, f"int8.{name}", np.asarray(value))

    def _middle(self) -> ir.Value:
        return self._scalar("middle", np.uint8(_MIDDLE))


class _Before:
    """Nodes put before another one, and in the end instead of it."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.graph, self.node = graph, node

    def add(self, kind: str, inputs: list[ir.Value | None], *, domain: str = "", **attributes: object) -> ir.Value:
        node = ir.node(kind, inputs, attributes, domain=domain)
        self.graph.insert_before(self.node, node)
        return node.outputs[0]

    def instead(self, result: ir.Value) -> None:
        old = self.node.outputs[0]
        result.dtype = old.dtype
        if old.is_graph_output():
            result.name, result.shape = old.name, old.shape
        ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        self.graph.remove(self.node, safe=True)


def _scale(channels: np.ndarray, *, multiplied: bool) -> np.ndarray:
    """Of each channel, the first axis: as fine as its largest weight and, where it is multiplied as bytes, its largest
    pair of neighbours allow."""
    rows = channels.reshape(len(channels), -1)
    scale = np.maximum(np.abs(rows).max(1) / _LIMIT, _TINY)
    if not multiplied:
        return scale
    rows = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2)))
    pairs = np.abs(rows.reshape(len(rows), -1, 2).sum(-1)).max(1)
    return np.maximum(scale, pairs / _PAIR_LIMIT)


def _is_worth_it(weight: ir.Value) -> bool:
    values = array(weight)
    return values.ndim == 2 and values.dtype == np.float32 and values.size >= _SMALLEST


def _is_plain(node: ir.Node) -> bool:
    scales = [node.attributes[name].as_float() for name in ("alpha", "beta") if name in node.attributes]
    return not _flag(node, "transA") and all(scale == 1.0 for scale in scales)


def _flag(node: ir.Node, name: str) -> bool:
    return name in node.attributes and bool(node.attributes[name].as_int())
