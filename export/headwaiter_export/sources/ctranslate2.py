"""Reader of CTranslate2's `model.bin`.

The file is little-endian: format version, spec name, revision, the variables (name, shape, type, bytes), then the
aliases, which are names that share the data of another variable. Quantised weights have a scale, either one per output
row or one for the whole tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headwaiter_export.errors import SourceError

_VERSION = 6
_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16, np.uint16)
_BFLOAT16 = 5  # stored as raw 16-bit values

Variables = dict[str, np.ndarray]


def read_variables(path: Path) -> tuple[str, Variables]:
    """Return the spec name and all variables, with the weights converted to fp32."""
    try:
        spec, stored = _Reader(path.read_bytes()).model()
    except (struct.error, UnicodeDecodeError, ValueError, IndexError, KeyError) as error:
        raise SourceError(f"{path.name} is not a complete CTranslate2 model ({error}); download it again.") from error
    scales = {name for name in stored if name.endswith("_scale") and name.removesuffix("_scale") in stored}
    return spec, {name: _as_fp32(name, stored) for name in stored.keys() - scales}


def _as_fp32(name: str, stored: Mapping[str, np.ndarray]) -> np.ndarray:
    value, scale = stored[name], stored.get(f"{name}_scale")
    if scale is not None:
        return value.astype(np.float32) / (scale if scale.size == 1 else scale.reshape(-1, 1))
    return value.astype(np.float32) if value.dtype == np.float16 else value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.offset = data, 0

    def model(self) -> tuple[str, Variables]:
        version = self._number("I")
        if version != _VERSION:
            raise ValueError(f"format version {version}, supported is {_VERSION}")
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
        type_id = self._number("B")
        size = self._number("I")
        if self.offset + size > len(self.data):
            raise ValueError(f"file ends inside {name}")
        dtype = np.dtype(_TYPES[type_id])
        value = np.frombuffer(self.data, dtype, size // dtype.itemsize, self.offset).reshape(shape)
        self.offset += size
        if type_id == _BFLOAT16:
            value = (value.astype(np.uint32) << 16).view(np.float32)
        return name, value

    def _number(self, code: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.offset)
        self.offset += struct.calcsize(f"<{code}")
        return int(value)

    def _text(self) -> str:
        length = self._number("H")
        value = self.data[self.offset : self.offset + length].rstrip(b"\0").decode()
        self.offset += length
        return value
