"""Count fused attention operators in graphs, and unfused attention (a softmax followed by a matrix product)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx_ir as ir

from headwaiter.package.manifest import FusionReport
from headwaiter_export.errors import ExportError
from headwaiter_export.tracing.attention import FUSED_OPERATORS

if TYPE_CHECKING:
    from headwaiter_export.families.family import Family

# Operators between the softmax and the matrix product of attention.
_TRANSPARENT_OPERATORS = {"Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Unsqueeze", "Where"}


def fused_operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph if node.op_type in FUSED_OPERATORS)


def unfused_attention(model: ir.Model) -> int:
    return sum(_is_attention_softmax(node) for node in model.graph if node.op_type == "Softmax")


def check_fusion(family: Family, models: Iterable[ir.Model]) -> FusionReport:
    """Raise `ExportError` if attention is unfused and the family states no reason for it."""
    operators: Counter[str] = Counter()
    unfused = 0
    for model in models:
        operators += fused_operators(model)
        unfused += unfused_attention(model)
    total = operators.total() + unfused
    unfused_reason = family.unfused_reason or family.no_fused_operator_reason
    if unfused and unfused_reason is None:
        raise ExportError(f"{unfused} of {total} attention layers of {family.name} are not fused.")
    return FusionReport(
        attention=total,
        fused=operators.total(),
        operators=dict(operators),
        unfused_reason=unfused_reason if unfused else None,
    )


def _is_attention_softmax(softmax: ir.Node) -> bool:
    pending = [usage.node for usage in softmax.outputs[0].uses()]
    while pending:
        node = pending.pop()
        if node.op_type == "MatMul":
            return True
        if node.op_type in _TRANSPARENT_OPERATORS:
            pending += [usage.node for usage in node.outputs[0].uses()]
    return False
