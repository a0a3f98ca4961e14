from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from headwaiter_export.errors import ExportError
from headwaiter_export.validation.cuda import check_cuda_ready, cpu_fallbacks

HEADER = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft": 1]>'
GRAPHS: dict[str, tuple[str, dict[str, str]]] = {
    "fp16": ("(float16[n, 4] x, float16[4, 4] z) => (float16[n, 4] y) { y = MatMul(x, z) }", {}),
    "unknown operator": (
        "(float16[n, 4] x) => (float16[n, 4] y) { y = com.microsoft.Salad(x) }",
        {"Salad": "no kernel"},
    ),
    "wrong type": (
        "(int32[n, 4] x, int32[4, 4] z) => (int32[n, 4] y) { y = MatMul(x, z) }",
        {"MatMul": "no kernel for int32"},
    ),
    "shape arithmetic": (
        "(float16[n, 4] x) => (int64[2] y) { s = Shape(x) y = Mod(s, s) }",
        {},
    ),
}


def _parse_fallbacks(body: str) -> dict[str, str]:
    return cpu_fallbacks(ir.from_proto(onnx.parser.parse_model(f"{HEADER} graph {body}")))


@pytest.mark.parametrize("name", GRAPHS)
def test_cpu_fallbacks_lists_operators_without_kernel(name: str) -> None:
    body, expected = GRAPHS[name]
    assert _parse_fallbacks(body) == expected


def test_check_cuda_ready_required_operator_is_rejected() -> None:
    check_cuda_ready("decoder", _parse_fallbacks(GRAPHS["unknown operator"][0]))
    with pytest.raises(ExportError, match=r"decoder: MatMul would fall back to the CPU .*int32"):
        check_cuda_ready("decoder", _parse_fallbacks(GRAPHS["wrong type"][0]))
