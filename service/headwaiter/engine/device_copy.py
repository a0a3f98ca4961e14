"""ONNX graph that copies tensors; running it on a device copies within device memory, and to or from the host.

The `onnx` package is not a serving dependency, so the model is serialised here with the field numbers of onnx.proto.
"""

from __future__ import annotations

_IR, _OPSET = 10, 20
_UINT8 = 2


def build_copy_graph(count: int) -> bytes:
    """Serialise a model that copies `from.0` to `to.0`, `from.1` to `to.1` and so on, as bytes, in one run."""
    pairs = [(f"from.{index}", f"to.{index}") for index in range(count)]
    nodes = [
        _string_field(1, source) + _string_field(2, target) + _string_field(4, "Identity") for source, target in pairs
    ]
    graph = b"".join(_message_field(1, node) for node in nodes) + _string_field(2, "copies")
    graph += b"".join(_message_field(11, _bytes_value_info(source)) for source, _ in pairs)
    graph += b"".join(_message_field(12, _bytes_value_info(target)) for _, target in pairs)
    return _varint_field(1, _IR) + _message_field(7, graph) + _message_field(8, _varint_field(2, _OPSET))


def _bytes_value_info(name: str) -> bytes:
    """A one-dimensional uint8 tensor; each pair has a size axis of its own, so sizes may differ between pairs."""
    shape = _message_field(1, _string_field(2, "size." + name.split(".")[1]))
    return _string_field(1, name) + _message_field(
        2, _message_field(1, _varint_field(1, _UINT8) + _message_field(2, shape))
    )


def _string_field(field: int, text: str) -> bytes:
    return _message_field(field, text.encode())


def _message_field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint_field(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])
