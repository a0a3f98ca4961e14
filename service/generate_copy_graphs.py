"""`make copy-graphs`: generate the ONNX graphs with which `headwaiter.engine.device_copy` copies device memory.

They are committed, because the `onnx` package is not a serving dependency.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

OUTPUT = Path(__file__).parent / "headwaiter/engine/copy_graphs"
WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # pairs of arrays that one run copies
_IR, _OPSET = 10, 20


def build_copy_graph(width: int) -> onnx.ModelProto:
    """Build a model that copies `from.0` to `to.0`, `from.1` to `to.1` and so on, as bytes.

    Each pair has a size axis of its own, so sizes may differ between pairs.
    """
    pairs = range(width)
    inputs, outputs = (
        [helper.make_tensor_value_info(f"{name}.{i}", TensorProto.UINT8, [f"size.{i}"]) for i in pairs]
        for name in ("from", "to")
    )
    nodes = [helper.make_node("Identity", [f"from.{i}"], [f"to.{i}"]) for i in pairs]
    graph = helper.make_graph(nodes, "copies", inputs, outputs)
    model = helper.make_model(graph, ir_version=_IR, opset_imports=[helper.make_opsetid("", _OPSET)])
    onnx.checker.check_model(model, full_check=True)
    return model


def generate(output: Path) -> None:
    """Write `WIDTH.onnx` for every width to `output`."""
    output.mkdir(exist_ok=True)
    for width in WIDTHS:
        content = build_copy_graph(width).SerializeToString(deterministic=True)
        (output / f"{width}.onnx").write_bytes(content)


if __name__ == "__main__":
    generate(OUTPUT)
