"""Queries, keys and values of causal attention as one product instead of three: its operator takes them packed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.constants import add_constant, array, constant


@dataclass(frozen=True, slots=True)
class _Projection:
    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None

    @property
    def width(self) -> int:
        return array(self.weight).shape[1]


def pack_projections(graph: ir.Graph) -> None:
    for node in [node for node in graph if node.op_type == "GroupQueryAttention"]:
        packed = _split_in_three(node) or _joined(graph, node)
        if packed is not None:
            node.replace_input_with(0, packed)
            node.replace_input_with(1, None)
            node.replace_input_with(2, None)


def _split_in_three(node: ir.Node) -> ir.Value | None:
    """What was one product already and came apart only for the operator."""
    parts = node.inputs[:3]
    split = parts[0].producer() if parts[0] is not None else None
    if split is None or split.op_type != "Split" or tuple(split.outputs) != tuple(parts):
        return None
    return split.inputs[0]


def _joined(graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    found = [_projection(value) for value in node.inputs[:3]]
    projections = [each for each in found if each is not None and each.source is found[0].source]  # type: ignore[union-attr]
    if len(projections) < 3:
        return None
    source, name = projections[0].source, f"{projections[0].weight.name}.packed"
    weight = add_constant(graph, name, np.concatenate([array(each.weight) for each in projections], axis=1))
    product = _insert(graph, node, "MatMul", source, weight)
    if all(each.bias is None for each in projections):
        return product
    biases = [np.zeros(each.width, np.float32) if each.bias is None else array(each.bias) for each in projections]
    bias = add_constant(graph, f"{name}.bias", np.concatenate(biases))
    return _insert(graph, node, "Add", product, bias)


def _insert(graph: ir.Graph, before: ir.Node, kind: str, left: ir.Value, right: ir.Value) -> ir.Value:
    node = ir.node(kind, [left, right])
    node.outputs[0].dtype = left.dtype
    graph.insert_before(before, node)
    return node.outputs[0]


def _projection(value: ir.Value | None) -> _Projection | None:
    node, bias = value.producer() if value is not None else None, None
    if node is not None and node.op_type == "Add" and (bias := constant(node.inputs[1])) is not None:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "MatMul":
        return None
    source, weight = node.inputs[0], constant(node.inputs[1])
    return None if source is None or weight is None else _Projection(source, weight, bias)
