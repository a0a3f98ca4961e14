"""Counts attention in graphs: fused operators, and softmaxes between two products that stayed unfused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from export.attention import FUSED_OPERATORS
from export.errors import ExportError
from export.family import Family
from service.package import Fused

_PASSED_ON = {"Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Unsqueeze", "Where"}


def fused_operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph if node.op_type in FUSED_OPERATORS)


def unfused_attention(model: ir.Model) -> int:
    return sum(_weighs_something(node) for node in model.graph if node.op_type == "Softmax")


def demand_fusion(family: Family, models: Iterable[ir.Model]) -> Fused:
    """All attention is fused, unless the family says why it cannot be."""
    operators: Counter[str] = Counter()
    unfused = 0
    for model in models:
        operators += fused_operators(model)
        unfused += unfused_attention(model)
    total = operators.total() + unfused
    because = family.cannot_fuse or family.unfusable
    if unfused and because is None:
        raise ExportError(f"{unfused} of {total} attentions of {family.name} did not come out fused.")
    return Fused(
        attention=total,
        fused=operators.total(),
        operators=dict(operators),
        because=because if unfused else None,
    )


def _weighs_something(softmax: ir.Node) -> bool:
    waiting = [usage.node for usage in softmax.outputs[0].uses()]
    while waiting:
        node = waiting.pop()
        if node.op_type == "MatMul":
            return True
        if node.op_type in _PASSED_ON:
            waiting += [usage.node for usage in node.outputs[0].uses()]
    return False
