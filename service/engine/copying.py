"""A graph that copies: what lies in the memory of a device is moved there by the device, and only graphs run on it.

The serving set has no `onnx`, so the few bytes of this graph are written here, field by field as onnx.proto has them.
"""

from __future__ import annotations

_IR, _OPSET = 10, 20
_UINT8 = 2


def copying_graph(count: int) -> bytes:
    """`from.0` to `to.0`, `from.1` to `to.1` …, each as bytes, all in one call."""
    pairs = [(f"from.{index}", f"to.{index}") for index in range(count)]
    nodes = [_text(1, source) + _text(2, target) + _text(4, "Identity") for source, target in pairs]
    graph = b"".join(_part(1, node) for node in nodes) + _text(2, "copies")
    graph += b"".join(_part(11, _bytes_called(source)) for source, _ in pairs)
    graph += b"".join(_part(12, _bytes_called(target)) for _, target in pairs)
    return _number(1, _IR) + _part(7, graph) + _part(8, _number(2, _OPSET))


def _bytes_called(name: str) -> bytes:
    """One axis, as long as its input, so that inputs and outputs of different pairs may differ."""
    shape = _part(1, _text(2, "size." + name.split(".")[1]))
    return _text(1, name) + _part(2, _part(1, _number(1, _UINT8) + _part(2, shape)))


def _text(field: int, text: str) -> bytes:
    return _part(field, text.encode())


def _part(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])
