"""Merge the query, key and value projections of GroupQueryAttention into one matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from headwaiter_export.passes.constants import add_constant, array, constant


@dataclass(frozen=True, slots=True)
class _Projection:
    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None

    @property
    def width(self) -> int:
        return array(self.weight).shape[1]


def pack_projections(graph: ir.Graph) -> None:
    """Pass packed queries, keys and values to every GroupQueryAttention whose projections have the same input."""
    for node in [node for node in graph if node.op_type == "GroupQueryAttention"]:
        packed = _input_of_split(node) or _merge_projections(graph, node)
        if packed is not None:
            node.replace_input_with(0, packed)
            node.replace_input_with(1, None)
            node.replace_input_with(2, None)


def _input_of_split(node: ir.Node) -> ir.Value | None:
    """Return the packed projection that the model itself splits into queries, keys and values, if any."""
    parts = node.inputs[:3]
    split = parts[0].producer() if parts[0] is not None else None
    if split is None or split.op_type != "Split" or tuple(split.outputs) != tuple(parts):
        return None
    return split.inputs[0]


def _merge_projections(graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    matches = [_match_projection(value) for value in node.inputs[:3]]
    projections = [match for match in matches if match is not None and match.source is matches[0].source]  # type: ignore[union-attr]
    if len(projections) < 3:
        return None
    source, name = projections[0].source, f"{projections[0].weight.name}.packed"
    weight = add_constant(graph, name, np.concatenate([array(projection.weight) for projection in projections], axis=1))
    product = _insert_node(graph, node, "MatMul", source, weight)
    if all(projection.bias is None for projection in projections):
        return product
    biases = [
        np.zeros(projection.width, np.float32) if projection.bias is None else array(projection.bias)
        for projection in projections
    ]
    bias = add_constant(graph, f"{name}.bias", np.concatenate(biases))
    return _insert_node(graph, node, "Add", product, bias)


def _insert_node(graph: ir.Graph, before: ir.Node, op_type: str, left: ir.Value, right: ir.Value) -> ir.Value:
    node = ir.node(op_type, [left, right])
    node.outputs[0].dtype = left.dtype
    graph.insert_before(before, node)
    return node.outputs[0]


def _match_projection(value: ir.Value | None) -> _Projection | None:
    node, bias = value.producer() if value is not None else None, None
    if node is not None and node.op_type == "Add" and (bias := constant(node.inputs[1])) is not None:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "MatMul":
        return None
    source, weight = node.inputs[0], constant(node.inputs[1])
    return None if source is None or weight is None else _Projection(source, weight, bias)
