"""`quantise` on small graphs, compared with exact integer arithmetic and with fp32."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

from headwaiter_export.passes.int8 import quantise

INPUTS, OUTPUTS = 256, 32
MODEL = '<ir_version: 10, opset_import: ["" : 20]> graph ({inputs}) => ({outputs}) {{ {body} }}'
ROWS, PRODUCT = f"float[rows, {INPUTS}] x", f"float[rows, {OUTPUTS}] y"


def _model(inputs: str, outputs: str, body: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(MODEL.format(inputs=inputs, outputs=outputs, body=body))
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model


def _quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    quantise(graph)
    proto: onnx.ModelProto = ir.to_proto(graph)
    return proto


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y: np.ndarray = session.run(["y"], {"x": x})[0]
    return y


def _extreme_values(rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return integers in [-127, 127], mostly extreme, with 127 in each row, so that quantisation is exact."""
    values = rng.choice([-127, 127, 126, -126, 3], (rows, INPUTS), p=[0.2, 0.5, 0.1, 0.1, 0.1])
    values[:, 0], values[0] = 127, 127
    return values


def _extreme_weights(rng: np.random.Generator) -> np.ndarray:
    """Return weights whose adjacent pairs have the largest sums that do not reduce the precision of a channel."""
    pairs = np.array([(64, 63), (63, 64), (-64, -63), (127, -127), (-127, 127), (127, 0), (0, -127)])
    weights = pairs[rng.integers(len(pairs), size=(OUTPUTS, INPUTS // 2))]
    weights[0], weights[1], weights[:, 0] = pairs[0], pairs[2], pairs[5]
    return weights.reshape(OUTPUTS, INPUTS).T


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
def test_int8_extreme_products_are_exact(rows: int) -> None:
    """CPUs without VNNI add two products in 16 bits; an overflow would change the result by thousands."""
    rng = np.random.default_rng(1)
    values, weights = _extreme_values(rows, rng), _extreme_weights(rng)
    model = _quantised(_model(ROWS, PRODUCT, "y = MatMul(x, w)", w=(weights / 127).astype(np.float32)))
    products = _run(model, (values / 127).astype(np.float32)) * 127 * 127
    assert np.abs(products - values @ weights).max() < 1, "results are integers; smaller differences are fp32 rounding"


@pytest.mark.parametrize("inputs", [INPUTS, INPUTS - 1])
def test_int8_pair_sums_never_overflow(inputs: int) -> None:
    weights = np.abs(np.random.default_rng(1).standard_t(3, (inputs, OUTPUTS))).astype(np.float32)
    model = _quantised(_model(f"float[rows, {inputs}] x", PRODUCT, "y = MatMul(x, w)", w=weights))
    (stored,) = (numpy_helper.to_array(value) for value in model.graph.initializer if value.name == "w.int8")
    padded = np.pad(stored.astype(np.int64), ((0, inputs % 2), (0, 0)))
    pairs = padded.reshape(-1, 2, OUTPUTS).sum(1).max(0)
    assert 255 * pairs.max() <= np.iinfo(np.int16).max
    assert (np.maximum(pairs, padded.max(0)) >= 126).all(), "the scales must not be larger than necessary"


def test_int8_matmul_stores_int8_weights() -> None:
    weights = np.random.default_rng(1).standard_normal((INPUTS, OUTPUTS)).astype(np.float32)
    model = _quantised(_model(ROWS, PRODUCT, "y = MatMul(x, w)", w=weights))
    stored = {value.name: numpy_helper.to_array(value) for value in model.graph.initializer}
    assert stored["w.int8"].dtype == np.int8
    assert "w" not in stored
    assert [node.op_type for node in model.graph.node].count("MatMul") == 0


def test_int8_zero_row_returns_bias() -> None:
    rng = np.random.default_rng(2)
    weights, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((OUTPUTS, INPUTS), (OUTPUTS,)))
    model = _quantised(_model(ROWS, PRODUCT, "y = Gemm <transB: int = 1> (x, w, b)", w=weights, b=bias))
    x = rng.standard_normal((3, INPUTS)).astype(np.float32)
    x[1] = 0
    assert _run(model, x)[1].tolist() == bias.tolist()


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


IMAGE = "float[rows, 8, 9, 11] x"
FP32_COMPARISONS = {
    "MatMul": (_model(ROWS, PRODUCT, "y = MatMul(x, w)", w=_normal(INPUTS, OUTPUTS)), _normal(5, INPUTS)),
    "Gemm": (
        _model(ROWS, PRODUCT, "y = Gemm(x, w, b)", w=_normal(INPUTS, OUTPUTS), b=20 * _normal(OUTPUTS)),
        _normal(5, INPUTS),
    ),
    "Gemm, transposed": (
        _model(ROWS, PRODUCT, "y = Gemm <transB = 1> (x, w, b)", w=_normal(OUTPUTS, INPUTS), b=20 * _normal(OUTPUTS)),
        _normal(5, INPUTS),
    ),
    "Gather": (
        _model("int64[rows, n] x", "float[rows, n, 40] y", "y = Gather <axis = 0> (w, x)", w=_normal(300, 40)),
        np.arange(300).reshape(3, 100),
    ),
    "tied": (
        _model(
            "int64[rows] x",
            "float[rows, 300] y",
            "h = Gather <axis = 0> (w, x) y = Gemm <transB = 1> (h, w)",
            w=_normal(300, 40),
        ),
        np.arange(300),
    ),
    "Conv": (
        _model(
            IMAGE,
            "float[rows, 16, 9, 11] y",
            "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)",
            w=_normal(16, 8, 3, 3),
            b=_normal(16),
        ),
        3 + _normal(2, 8, 9, 11),
    ),
}


@pytest.mark.parametrize("operator", FP32_COMPARISONS)
def test_int8_operator_approximates_fp32(operator: str) -> None:
    model, x = FP32_COMPARISONS[operator]
    expected, quantised = _run(model, x), _quantised(model)
    assert any(value.data_type == onnx.TensorProto.INT8 for value in quantised.graph.initializer)
    error = np.sqrt(np.square(_run(quantised, x) - expected).mean()) / expected.std()
    assert 0 < error < 0.02


def test_int8_row_is_independent_of_larger_rows() -> None:
    model = _quantised(_model(ROWS, PRODUCT, "y = MatMul(x, w)", w=_normal(INPUTS, OUTPUTS)))
    x = _normal(4, INPUTS)
    single_row = _run(model, x[:1])
    assert _run(model, x * np.array([[1], [1e6], [1], [1e-6]], np.float32))[:1].tobytes() == single_row.tobytes()
