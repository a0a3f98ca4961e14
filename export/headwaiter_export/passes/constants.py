"""Access to the initializers of a graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def constant(value: ir.Value | None) -> ir.Value | None:
    """Return the value if it is an initializer, otherwise None."""
    return value if value is not None and value.is_initializer() else None


def array(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())


def add_constant(graph: ir.Graph, name: str, content: np.ndarray) -> ir.Value:
    """Return the initializer of this name, adding it if the graph does not have it."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = ir.Value(name=name, const_value=ir.tensor(content, name=name))
    value.dtype, value.shape = ir.DataType.from_numpy(content.dtype), ir.Shape(content.shape)
    graph.register_initializer(value)
    return value
