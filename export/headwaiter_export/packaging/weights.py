"""One safetensors file with the weights of all graphs, which ONNX Runtime reads as external data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
from safetensors.numpy import save_file

from headwaiter.package.manifest import WEIGHTS
from headwaiter_export.passes.constants import array

_INLINE_BYTES = 512  # shapes, axes and scalars stay in the graph


def save_graphs(models: Mapping[str, ir.Model], folder: Path) -> None:
    """Write `NAME.onnx` for each graph and their weights. Weights with equal content are stored once."""
    names: dict[bytes, str] = {}
    stored: dict[str, np.ndarray] = {}
    references: list[tuple[ir.Value, str]] = []
    for model in models.values():
        for value in model.graph.initializers.values():
            content = np.ascontiguousarray(array(value))  # safetensors requires contiguous arrays
            if content.nbytes <= _INLINE_BYTES:
                continue
            key = _fingerprint(content)
            if key not in names:
                names[key] = _unique_name(str(value.name), stored)
                stored[names[key]] = content
            references.append((value, names[key]))
    if stored:
        save_file(stored, folder / WEIGHTS)
        (folder / WEIGHTS).chmod(0o644)  # safetensors makes it owner-only; serving often runs as another user
    offsets = _offsets(folder / WEIGHTS) if stored else {}
    for value, name in references:
        offset, length = offsets[name]
        value.const_value = ir.ExternalTensor(
            WEIGHTS,
            offset,
            length,
            ir.DataType.from_numpy(stored[name].dtype),
            shape=ir.Shape(stored[name].shape),
            name=str(value.name),
            base_dir=folder,
        )
    for name, model in models.items():
        ir.save(model, folder / f"{name}.onnx")


def _fingerprint(content: np.ndarray) -> bytes:
    hasher = hashlib.sha256(f"{content.dtype}{content.shape}".encode())
    hasher.update(content.view(np.uint8).reshape(-1).data)
    return hasher.digest()


def _unique_name(name: str, taken: Mapping[str, np.ndarray]) -> str:
    candidate, count = name, 1
    while candidate in taken:
        candidate, count = f"{name}.{count}", count + 1
    return candidate


def _offsets(file: Path) -> dict[str, tuple[int, int]]:
    """Return offset and length of each tensor in the file, in bytes.

    The file starts with the header length (8 bytes) and the JSON header, whose offsets are relative to its end.
    """
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    return {
        name: (8 + size + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    }
