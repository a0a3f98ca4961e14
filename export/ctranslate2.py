"""Reads CTranslate2's `model.bin`.

The file is little-endian: version, spec name, revision, then the variables (name, shape, type, bytes) and aliases,
which are names that share another variable's data. Quantised weights come with a scale, one per output row or one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from export.errors import SourceError

_VERSION = 6
_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16, np.uint16)
_BFLOAT16 = 5  # read as its bits

Variables = dict[str, np.ndarray]


def read_variables(path: Path) -> tuple[str, Variables]:
    """The spec's name and all variables, weights as fp32 whatever they are stored as."""
    try:
        spec, stored = _Reader(path.read_bytes()).model()
    except (struct.error, UnicodeDecodeError, ValueError, IndexError, KeyError) as error:
        raise SourceError(f"{path.name} is not a whole CTranslate2 model ({error}): fetch it again.") from error
    scales = {name for name in stored if name.endswith("_scale") and name.removesuffix("_scale") in stored}
    return spec, {name: _as_fp32(name, stored) for name in stored.keys() - scales}


def _as_fp32(name: str, stored: Mapping[str, np.ndarray]) -> np.ndarray:
    value, scale = stored[name], stored.get(f"{name}_scale")
    if scale is not None:
        return value.astype(np.float32) / (scale if scale.size == 1 else scale.reshape(-1, 1))
    return value.astype(np.float32) if value.dtype == np.float16 else value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def model(self) -> tuple[str, Variables]:
        version = self._number("I")
        if version != _VERSION:
            raise ValueError(f"its format is {version}, {_VERSION} can be read")
        spec, _revision = self._text(), self._number("I")
        variables = dict(self._variable() for _ in range(self._number("I")))
        for _ in range(self._number("I")):
            alias, name = self._text(), self._text()
            variables[alias] = variables[name]
            if f"{name}_scale" in variables:
                variables[f"{alias}_scale"] = variables[f"{name}_scale"]
        return spec, variables

    def _variable(self) -> tuple[str, np.ndarray]:
        name = self._text()
        shape = [self._number("I") for _ in range(self._number("B"))]
        kind = self._number("B")
        size = self._number("I")
        if self.at + size > len(self.data):
            raise ValueError(f"it ends inside {name}")
        dtype = np.dtype(_TYPES[kind])
        value = np.frombuffer(self.data, dtype, size // dtype.itemsize, self.at).reshape(shape)
        self.at += size
        if kind == _BFLOAT16:
            value = (value.astype(np.uint32) << 16).view(np.float32)
        return name, value

    def _number(self, code: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return int(value)

    def _text(self) -> str:
        length = self._number("H")
        value = self.data[self.at : self.at + length].rstrip(b"\0").decode()
        self.at += length
        return value
