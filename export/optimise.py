"""Small rewrites that make a traced graph leaner. Fusion is not done here: attention comes fused out of the trace."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from export.constants import add_constant, array, constant
from export.projections import pack_projections


def optimise(model: ir.Model) -> None:
    """Wants the shapes that the trace left on the values; forgets them, as some are stand-ins for run-time values."""
    graph = model.graph
    _drop_round_trips(graph)
    _fold_selections(graph)
    pack_projections(graph)
    _clean(model)
    _shorten_names(graph)
    _forget(model)


def fold_transposes(graph: ir.Graph) -> None:
    """A weight is stored the way its product takes it, unless another node takes it untransposed (tied embeddings)."""
    for node in _nodes(graph, "Transpose"):
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


def _clean(model: ir.Model) -> None:
    passes.CommonSubexpressionEliminationPass()(model)
    remove_unused(model)


def _drop_round_trips(graph: ir.Graph) -> None:
    """Heads are split before attention and joined for the operator: two reshapes that end where they began."""
    for node in _nodes(graph, "Reshape"):
        source = node.inputs[0]
        while source is not None and (before := source.producer()) is not None and before.op_type == "Reshape":
            source = before.inputs[0]
            if source is not None and _same_shape(source, node.outputs[0]):
                ir.convenience.replace_all_uses_with(node.outputs[0], source, replace_graph_outputs=True)
                break


def _fold_selections(graph: ir.Graph) -> None:
    """A fixed row of a constant, such as the bias of the vocabulary, is a constant itself."""
    for node in _nodes(graph, "Gather"):
        table, index = (constant(value) for value in node.inputs)
        if table is not None and index is not None:
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            chosen = np.ascontiguousarray(np.take(array(table), array(index), axis=axis))
            value = add_constant(graph, f"{table.name}.{node.outputs[0].name}", chosen)
            ir.convenience.replace_all_uses_with(node.outputs[0], value)


def _same_shape(first: ir.Value, second: ir.Value) -> bool:
    return first.shape is not None and first.shape == second.shape and all(d is not None for d in first.shape)


def _forget(model: ir.Model) -> None:
    """Shapes of inner values, and the exporter's notes: stack traces of this machine."""
    graph = model.graph
    model.doc_string = graph.doc_string = None
    for notes in (model, graph, *graph.inputs, *graph.outputs, *graph.initializers.values(), *graph.all_nodes()):
        notes.metadata_props.clear()
    for node in graph.all_nodes():
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.shape = None


def _shorten_names(graph: ir.Graph) -> None:
    for value in list(graph.initializers.values()):
        short = str(value.name).removeprefix("inner.").removeprefix("model.")
        if short != value.name and short not in graph.initializers and _is_free(graph, short):
            value.name = short


def _is_free(graph: ir.Graph, name: str) -> bool:
    return all(value.name != name for value in (*graph.inputs, *graph.outputs))


def _nodes(graph: ir.Graph, kind: str) -> Iterator[ir.Node]:
    return (node for node in list(graph) if node.op_type == kind)
