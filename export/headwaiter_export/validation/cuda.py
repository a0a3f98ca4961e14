"""Find operators without a CUDA kernel from the kernel list of ONNX Runtime, without a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import onnx
import onnx_ir as ir

from headwaiter_export.errors import ExportError
from headwaiter_export.tracing.attention import FUSED_OPERATORS

CUDA_REQUIRED_OPERATORS = {*FUSED_OPERATORS, "Conv", "FusedMatMul", "Gemm", "MatMul"}  # too slow on the CPU
_ONNX_DOMAIN = "ai.onnx"


def cpu_fallbacks(model: ir.Model) -> dict[str, str]:
    """Return the operators that would fall back to the CPU, with the reason. Shape arithmetic is excluded."""
    fallbacks: dict[str, str] = {}
    shapes: set[ir.Value] = set()
    for node in model.graph:
        if _is_shape_arithmetic(node, shapes):
            shapes.update(node.outputs)
        elif (reason := _missing_kernel(node, model.opset_imports)) is not None:
            fallbacks[node.op_type] = reason
    return fallbacks


def check_cuda_ready(name: str, fallbacks: dict[str, str]) -> None:
    """Raise `ExportError` if attention, convolutions or matrix products of a graph would run on the CPU."""
    if operators := sorted(CUDA_REQUIRED_OPERATORS & fallbacks.keys()):
        raise ExportError(f"{name}: {operators[0]} would fall back to the CPU ({fallbacks[operators[0]]}).")


def _is_shape_arithmetic(node: ir.Node, shapes: set[ir.Value]) -> bool:
    if node.op_type in ("Shape", "Size"):
        return True
    inputs = [value for value in node.inputs if value is not None]
    return all(value in shapes or value.is_initializer() for value in inputs) and all(
        value.dtype is None or value.dtype.is_integer() for value in node.outputs
    )


def _missing_kernel(node: ir.Node, opsets: dict[str, int]) -> str | None:
    kernels = _kernels().get(node.domain or _ONNX_DOMAIN, {}).get(node.op_type)
    if not kernels:
        return "no kernel"
    version = _operator_version(node, opsets)
    candidates = [
        types for first, last, types in kernels if first == version or (last is not None and first <= version <= last)
    ]
    if not candidates:
        return f"no kernel for opset {version}"
    input_types = [None if value is None or value.dtype is None else _type_name(value.dtype) for value in node.inputs]
    for types in candidates:
        if all(_accepts(allowed, type_name) for allowed, type_name in zip(types, input_types, strict=False)):
            return None
    return f"no kernel for {', '.join(sorted({type_name for type_name in input_types if type_name is not None}))}"


def _accepts(allowed: Sequence[str], type_name: str | None) -> bool:
    return type_name is None or not allowed or type_name in allowed


def _operator_version(node: ir.Node, opsets: dict[str, int]) -> int:
    """Return the opset version that defines the operator as used in this graph."""
    if node.domain not in ("", _ONNX_DOMAIN) or not onnx.defs.has(node.op_type, ""):
        return 1  # contrib operators have one version
    return int(onnx.defs.get_schema(node.op_type, opsets[""], "").since_version)


def _type_name(dtype: ir.DataType) -> str:
    return {ir.DataType.FLOAT: "float", ir.DataType.DOUBLE: "double"}.get(dtype, dtype.name.lower())


@cache
def _kernels() -> dict[str, Any]:
    text = resources.files("headwaiter_export.validation").joinpath("cuda_kernels.json").read_text()
    kernels: dict[str, Any] = json.loads(text)
    return kernels
