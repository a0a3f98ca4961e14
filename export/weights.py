"""One weights file for all graphs of a model: safetensors, which ONNX reads in place as external data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
from safetensors.numpy import save_file

from export.constants import array
from service.package import WEIGHTS

_INLINE_BYTES = 512  # shapes, axes and scalars stay in the graph


def save_graphs(models: Mapping[str, ir.Model], folder: Path) -> None:
    """Writes `NAME.onnx` for each graph and the weights they share. The same content is stored once."""
    names: dict[bytes, str] = {}
    stored: dict[str, np.ndarray] = {}
    placed: list[tuple[ir.Value, str]] = []
    for model in models.values():
        for value in model.graph.initializers.values():
            content = np.ascontiguousarray(array(value))  # safetensors writes memory as it lies
            if content.nbytes <= _INLINE_BYTES:
                continue
            key = _fingerprint(content)
            if key not in names:
                names[key] = _unused(str(value.name), stored)
                stored[names[key]] = content
            placed.append((value, names[key]))
    if stored:
        save_file(stored, folder / WEIGHTS)
        (folder / WEIGHTS).chmod(0o644)  # safetensors keeps it to the owner; serving is often another user
    places = _offsets(folder / WEIGHTS) if stored else {}
    for value, name in placed:
        offset, length = places[name]
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
    seal = hashlib.sha256(f"{content.dtype}{content.shape}".encode())
    seal.update(content.view(np.uint8).reshape(-1).data)
    return seal.digest()


def _unused(name: str, taken: Mapping[str, np.ndarray]) -> str:
    candidate, count = name, 1
    while candidate in taken:
        candidate, count = f"{name}.{count}", count + 1
    return candidate


def _offsets(file: Path) -> dict[str, tuple[int, int]]:
    """Where each tensor's bytes lie: the header (its length in 8 bytes, then JSON) counts from its own end."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    return {
        name: (8 + size + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    }
