"""Dynamic int8 quantisation for CPUs: weights with a scale per output channel, activations with a scale per row.

With a scale per row instead of per tensor, outputs do not depend on the other rows of the batch. Weights are signed,
because the kernels for unsigned weights are slower. CPUs without VNNI add the products of two adjacent weights in 16
bits; the scale of each channel is chosen so that no pair overflows, which costs less precision than the usual
reduction to 7 bits.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from headwaiter_export.passes.constants import add_constant, array, constant
from headwaiter_export.passes.optimise import remove_unused

_INT8_MAX = 127
_ZERO_POINT = 128  # activations are unsigned
# Largest sum of two adjacent weights; 1 is reserved for rounding.
_MAX_PAIR_SUM = np.iinfo(np.int16).max // (_INT8_MAX + _ZERO_POINT) - 1
_MIN_SCALE = np.float32(1e-20)  # avoids division by zero for a row of zeros
_MIN_ELEMENTS = 1 << 10  # quantising smaller weights does not outweigh the extra nodes


def quantise(model: ir.Model) -> None:
    """Quantise in place. Matrix products and lookups run on int8 weights; convolutions dequantise theirs first."""
    graph = model.graph
    quantiser = _Quantiser(graph)
    for node in list(graph):
        if node.op_type == "MatMul":
            quantiser.product(node, node.inputs[1], transposed=False, bias=None)
        elif node.op_type == "Gemm" and _is_plain_gemm(node):
            bias = node.inputs[2] if len(node.inputs) > 2 else None
            quantiser.product(node, node.inputs[1], transposed=_flag(node, "transB"), bias=bias)
        elif node.op_type == "Gather" and node.attributes["axis"].as_int() == 0:
            quantiser.lookup(node)
        elif node.op_type == "Conv":
            quantiser.convolution(node)
    remove_unused(model)
    model.opset_imports["com.microsoft"] = 1


class _Quantiser:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.rows: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self.weights: dict[tuple[ir.Value, int], tuple[ir.Value, ir.Value]] = {}

    def product(self, node: ir.Node, weight: ir.Value | None, *, transposed: bool, bias: ir.Value | None) -> None:
        weight = constant(weight)
        if weight is None or not _is_quantisable(weight):
            return
        replacer = _NodeReplacer(self.graph, node)
        quantised, scale = self._quantise_weight(weight, axis=0 if transposed else 1)
        if transposed:  # folded at load time; keeps one copy of the table on disk, shared with the lookup
            quantised = replacer.add("Transpose", [quantised], perm=[1, 0])
        values, max_abs = self._quantise_rows(replacer, node.inputs[0])
        step, zero_point = self._scalar("step", np.float32(1 / _INT8_MAX)), self._zero_point()
        inputs = [values, quantised, step, scale, zero_point]
        product = replacer.add("MatMulIntegerToFloat", inputs, domain="com.microsoft")
        result = replacer.add("Mul", [product, max_abs])
        if bias is not None:
            result = replacer.add("Add", [result, bias])
        replacer.replace_with(result)

    def lookup(self, node: ir.Node) -> None:
        table = constant(node.inputs[0])
        if table is None or not _is_quantisable(table):
            return
        replacer = _NodeReplacer(self.graph, node)
        quantised, scale = self._quantise_weight(table, axis=0)
        index = node.inputs[1]
        values = replacer.add("Cast", [replacer.add("Gather", [quantised, index], axis=0)], to=ir.DataType.FLOAT)
        column = add_constant(self.graph, f"{scale.name}.column", array(scale).reshape(-1, 1))
        replacer.replace_with(replacer.add("Mul", [values, replacer.add("Gather", [column, index], axis=0)]))

    def convolution(self, node: ir.Node) -> None:
        weight = constant(node.inputs[1])
        if weight is None or array(weight).size < _MIN_ELEMENTS:
            return
        replacer = _NodeReplacer(self.graph, node)
        quantised, scale = self._quantise_weight(weight, axis=0, multiplied=False)
        node.replace_input_with(1, replacer.add("DequantizeLinear", [quantised, scale], axis=0))

    def _quantise_rows(self, replacer: _NodeReplacer, values: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """Return each row quantised around the zero point, and its largest magnitude."""
        assert values is not None
        if values not in self.rows:
            last_axis = add_constant(self.graph, "last_axis", np.array([-1]))
            max_abs = replacer.add("ReduceMax", [replacer.add("Abs", [values]), last_axis], keepdims=1)
            max_abs = replacer.add("Max", [max_abs, self._scalar("tiny", _MIN_SCALE)])
            normalised = replacer.add("Div", [values, max_abs])
            step = self._scalar("step", np.float32(1 / _INT8_MAX))
            self.rows[values] = replacer.add("QuantizeLinear", [normalised, step, self._zero_point()]), max_abs
        return self.rows[values]

    def _quantise_weight(self, weight: ir.Value, axis: int, *, multiplied: bool = True) -> tuple[ir.Value, ir.Value]:
        """Return the weight in int8 and the scale of each channel along the axis.

        `multiplied` weights enter integer products and need scales that prevent overflow.
        """
        if (weight, axis) not in self.weights:
            values = array(weight).astype(np.float32)
            scale = _channel_scales(np.moveaxis(values, axis, 0), multiplied=multiplied)
            scale = np.moveaxis(np.expand_dims(scale, tuple(range(1, values.ndim))), 0, axis)
            quantised = np.rint(values / scale).astype(np.int8)
            self.weights[weight, axis] = (
                add_constant(self.graph, f"{weight.name}.int8", quantised),
                add_constant(self.graph, f"{weight.name}.scale", scale.reshape(-1).astype(np.float32)),
            )
        return self.weights[weight, axis]

    def _scalar(self, name: str, value: np.generic) -> ir.Value:
        return add_constant(self.graph, f"int8.{name}", np.asarray(value))

    def _zero_point(self) -> ir.Value:
        return self._scalar("middle", np.uint8(_ZERO_POINT))


class _NodeReplacer:
    """Inserts nodes before a node and finally replaces it by one of their outputs."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.graph, self.node = graph, node

    def add(self, op_type: str, inputs: list[ir.Value | None], *, domain: str = "", **attributes: object) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, domain=domain)
        self.graph.insert_before(self.node, node)
        return node.outputs[0]

    def replace_with(self, result: ir.Value) -> None:
        old = self.node.outputs[0]
        result.dtype = old.dtype
        if old.is_graph_output():
            result.name, result.shape = old.name, old.shape
        ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        self.graph.remove(self.node, safe=True)


def _channel_scales(channels: np.ndarray, *, multiplied: bool) -> np.ndarray:
    """Return the smallest scale of each channel (first axis) without overflow.

    The largest weight limits it and, if the weight is multiplied in int8, the largest sum of an adjacent pair.
    """
    rows = channels.reshape(len(channels), -1)
    scale = np.maximum(np.abs(rows).max(1) / _INT8_MAX, _MIN_SCALE)
    if not multiplied:
        return scale
    rows = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2)))
    pairs = np.abs(rows.reshape(len(rows), -1, 2).sum(-1)).max(1)
    return np.maximum(scale, pairs / _MAX_PAIR_SUM)


def _is_quantisable(weight: ir.Value) -> bool:
    values = array(weight)
    return values.ndim == 2 and values.dtype == np.float32 and values.size >= _MIN_ELEMENTS


def _is_plain_gemm(node: ir.Node) -> bool:
    scales = [node.attributes[name].as_float() for name in ("alpha", "beta") if name in node.attributes]
    return not _flag(node, "transA") and all(scale == 1.0 for scale in scales)


def _flag(node: ir.Node, name: str) -> bool:
    return name in node.attributes and bool(node.attributes[name].as_int())
