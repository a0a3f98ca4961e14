"""Simplifications of traced graphs. Attention is already fused during tracing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from headwaiter_export.passes.constants import add_constant, array, constant
from headwaiter_export.passes.projections import pack_projections


def optimise(model: ir.Model) -> None:
    """Optimise in place. Uses the traced shapes and removes them at the end, because some of them are placeholders."""
    graph = model.graph
    _remove_redundant_reshapes(graph)
    _fold_constant_gathers(graph)
    pack_projections(graph)
    _remove_duplicates(model)
    _shorten_names(graph)
    _strip_metadata(model)


def fold_transposes(graph: ir.Graph) -> None:
    """Store transposed weights as such, unless another node uses the original (tied embeddings)."""
    for node in _nodes_of_type(graph, "Transpose"):
        weight = constant(node.inputs[0])
        if weight is None or len(list(weight.uses())) > 1:
            continue
        folded = np.ascontiguousarray(np.transpose(array(weight), node.attributes["perm"].as_ints()))
        value = add_constant(graph, f"{weight.name}.transposed", folded)
        ir.convenience.replace_all_uses_with(node.outputs[0], value)


def remove_unused(model: ir.Model) -> None:
    passes.RemoveUnusedNodesPass()(model)
    initializers = model.graph.initializers
    for name in [name for name, value in initializers.items() if not value.uses() and not value.is_graph_output()]:
        del initializers[name]


def _remove_duplicates(model: ir.Model) -> None:
    passes.CommonSubexpressionEliminationPass()(model)
    remove_unused(model)


def _remove_redundant_reshapes(graph: ir.Graph) -> None:
    """Remove chains of reshapes that restore the original shape: heads are split and merged again around attention."""
    for node in _nodes_of_type(graph, "Reshape"):
        source = node.inputs[0]
        while source is not None and (before := source.producer()) is not None and before.op_type == "Reshape":
            source = before.inputs[0]
            if source is not None and _same_shape(source, node.outputs[0]):
                ir.convenience.replace_all_uses_with(node.outputs[0], source, replace_graph_outputs=True)
                break


def _fold_constant_gathers(graph: ir.Graph) -> None:
    """Fold gathers of constant indices from a constant, such as the logits bias."""
    for node in _nodes_of_type(graph, "Gather"):
        table, index = (constant(value) for value in node.inputs)
        if table is not None and index is not None:
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            rows = np.ascontiguousarray(np.take(array(table), array(index), axis=axis))
            value = add_constant(graph, f"{table.name}.{node.outputs[0].name}", rows)
            ir.convenience.replace_all_uses_with(node.outputs[0], value)


def _same_shape(first: ir.Value, second: ir.Value) -> bool:
    return first.shape is not None and first.shape == second.shape and all(d is not None for d in first.shape)


def _strip_metadata(model: ir.Model) -> None:
    """Remove shapes of intermediate values and exporter metadata, which contains stack traces with host paths."""
    graph = model.graph
    model.doc_string = graph.doc_string = None
    for element in (model, graph, *graph.inputs, *graph.outputs, *graph.initializers.values(), *graph.all_nodes()):
        element.metadata_props.clear()
    for node in graph.all_nodes():
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.shape = None


def _shorten_names(graph: ir.Graph) -> None:
    for value in list(graph.initializers.values()):
        short = str(value.name).removeprefix("inner.").removeprefix("model.")
        if short != value.name and short not in graph.initializers and _is_unused_name(graph, short):
            value.name = short


def _is_unused_name(graph: ir.Graph, name: str) -> bool:
    return all(value.name != name for value in (*graph.inputs, *graph.outputs))


def _nodes_of_type(graph: ir.Graph, op_type: str) -> Iterator[ir.Node]:
    return (node for node in list(graph) if node.op_type == op_type)
