"""What a graph would find on a CUDA device, told from the list of ONNX Runtime's kernels: no GPU is needed to know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import onnx
import onnx_ir as ir

from export.attention import FUSED_OPERATORS
from export.errors import ExportError

HEAVY = {*FUSED_OPERATORS, "Conv", "FusedMatMul", "Gemm", "MatMul"}  # these must not run elsewhere
_STANDARD = "ai.onnx"


def fallbacks(model: ir.Model) -> dict[str, str]:
    """Operators that would run on the CPU, and why. Small arithmetic on shapes is the runtime's own and left out."""
    found: dict[str, str] = {}
    shapes: set[ir.Value] = set()
    for node in model.graph:
        if _is_shape_arithmetic(node, shapes):
            shapes.update(node.outputs)
        elif (reason := _missing(node, model.opset_imports)) is not None:
            found[node.op_type] = reason
    return found


def demand_ready(name: str, found: dict[str, str]) -> None:
    """An fp16 package is for CUDA: its attention and products must run there."""
    if heavy := sorted(HEAVY & found.keys()):
        raise ExportError(f"{name}: {heavy[0]} would run on the CPU of a CUDA machine ({found[heavy[0]]}).")


def _is_shape_arithmetic(node: ir.Node, shapes: set[ir.Value]) -> bool:
    if node.op_type in ("Shape", "Size"):
        return True
    inputs = [value for value in node.inputs if value is not None]
    return all(value in shapes or value.is_initializer() for value in inputs) and all(
        value.dtype is None or value.dtype.is_integer() for value in node.outputs
    )


def _missing(node: ir.Node, opsets: dict[str, int]) -> str | None:
    kernels = _kernels().get(node.domain or _STANDARD, {}).get(node.op_type)
    if not kernels:
        return "no kernel"
    since = _since(node, opsets)
    fitting = [
        types for first, last, types in kernels if first == since or (last is not None and first <= since <= last)
    ]
    if not fitting:
        return f"no kernel for opset {since}"
    given = [None if value is None or value.dtype is None else _type_name(value.dtype) for value in node.inputs]
    for types in fitting:
        if all(_takes(allowed, kind) for allowed, kind in zip(types, given, strict=False)):
            return None
    return f"no kernel for {', '.join(sorted({kind for kind in given if kind is not None}))}"


def _takes(allowed: Sequence[str], kind: str | None) -> bool:
    return kind is None or not allowed or kind in allowed


def _since(node: ir.Node, opsets: dict[str, int]) -> int:
    """The opset in which the operator got the form that this graph uses."""
    if node.domain not in ("", _STANDARD) or not onnx.defs.has(node.op_type, ""):
        return 1  # contributed operators have one form
    return int(onnx.defs.get_schema(node.op_type, opsets[""], "").since_version)


def _type_name(dtype: ir.DataType) -> str:
    return {ir.DataType.FLOAT: "float", ir.DataType.DOUBLE: "double"}.get(dtype, dtype.name.lower())


@cache
def _kernels() -> dict[str, Any]:
    text = resources.files("export").joinpath("cuda_kernels.json").read_text()
    kernels: dict[str, Any] = json.loads(text)
    return kernels
