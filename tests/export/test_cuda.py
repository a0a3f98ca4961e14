from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from export.cuda import demand_ready, fallbacks
from export.errors import ExportError

HEADER = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft": 1]>'
GRAPHS: dict[str, tuple[str, dict[str, str]]] = {
    "halves": ("(float16[n, 4] x, float16[4, 4] z) => (float16[n, 4] y) { y = MatMul(x, z) }", {}),
    "made up": (
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


def _found(body: str) -> dict[str, str]:
    return fallbacks(ir.from_proto(onnx.parser.parse_model(f"{HEADER} graph {body}")))


@pytest.mark.parametrize("name", GRAPHS)
def test_fallbacks(name: str) -> None:
    body, expected = GRAPHS[name]
    assert _found(body) == expected


def test_heavy_operators_must_not_fall_back() -> None:
    demand_ready("decoder", _found(GRAPHS["made up"][0]))
    with pytest.raises(ExportError, match=r"decoder: MatMul would run on the CPU .*int32"):
        demand_ready("decoder", _found(GRAPHS["wrong type"][0]))
