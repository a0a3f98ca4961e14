"""Reads a model package: `models/NAME/VERSION/PRECISION/` with a manifest, ONNX graphs and the files they need."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.preprocessing import ImageSettings, TextSettings


def _floats_in_a_vector() -> int:
    """Of the CPU's vector units; eight where the system does not tell."""
    cpu = Path("/proc/cpuinfo")
    return 16 if cpu.is_file() and "avx512f" in cpu.read_text(encoding="ascii", errors="replace").split() else 8


FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
PADDING = _floats_in_a_vector()
"""Sequences are padded to a multiple of this: attention then sums in one order, and an answer does not depend on who
else is in the batch. int8 shows it most: a last bit that differs can round to another byte."""
RETURN, STATE, ACTION = range(3)  # the kinds of tokens that a policy reads
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]*")

Task = Literal["translation", "captioning", "classification", "detection", "policy", "generation"]
Precision = Literal["fp32", "fp16", "int8"]
Axis = str | int


class PackageError(Exception):
    """A package is missing, damaged or not for this release; the message says what would be right."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Port(_Part):
    """An input or output of a graph: axes are names where they vary from call to call."""

    name: str
    dtype: Literal["float32", "float16", "int64", "int32"]
    shape: tuple[Axis, ...]


class Graph(_Part):
    file: str
    nodes: int
    attention: int
    fused: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


class State(_Part):
    """Handed from step to step: `append` grows in one buffer bound as input and output, `replace` is swapped whole."""

    input: str
    output: str
    dtype: Literal["float32", "float16"]
    shape: tuple[Axis, ...]
    kind: Literal["append", "replace"]


class Fused(_Part):
    attention: int
    fused: int
    operators: dict[str, int]
    because: str | None = None  # why attention is left unfused, where it is


class Parity(_Part):
    """Largest differences, each divided by the spread (largest minus smallest) of the reference's values."""

    reference: str
    grid: str
    logits: float
    batched: float
    cached: float | None = None
    positions: float | None = None
    tokens: str | None = None


class Loss(_Part):
    """What a lower precision costs beside fp32, on the same inputs."""

    logits: float
    tokens: str | None = None
    batched: float


class Decoding(_Part):
    """How the model decodes where a request does not say otherwise, and the tokens that steer it."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    never: tuple[int, ...] = ()
    forced_first: int | None = None
    forced_last: int | None = None
    max_new_tokens: int
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0


class Policy(_Part):
    state_size: int
    action_size: int
    actions: Literal["continuous", "discrete"]
    context: int  # environment steps that the model was trained to look back on


class Preprocessing(_Part):
    text: Annotated[TextSettings, Field()] | None = None
    image: ImageSettings | None = None


class Manifest(_Part):
    format: Literal[1] = 1
    name: str
    version: str
    task: Task
    family: str
    source: str
    license: str | None = None
    attribution: str | None = None
    precision: Precision
    created: str
    headwaiter: str
    parameters: int
    graphs: dict[str, Graph]
    states: tuple[State, ...] = ()
    fused: Fused
    parity: Parity
    loss: Loss | None = None
    cuda: dict[str, dict[str, str]] = {}  # graph ▸ operator ▸ why it would fall back to the CPU on a CUDA device
    limits: dict[str, int]
    preprocessing: Preprocessing
    decoding: Decoding | None = None
    policy: Policy | None = None
    noise: int | None = None  # how many random numbers an image is made of, of a model that makes images
    labels: tuple[str, ...] | None = None
    multi_label: bool = False
    languages: dict[str, str] | None = None
    sha256: dict[str, str]

    @property
    def does(self) -> str:
        """The task in words: generation is of texts or of images."""
        return self.task if self.noise is None else f"{self.task} of images"


@dataclass(frozen=True, slots=True)
class Package:
    folder: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        return self.folder / name

    def size(self) -> int:
        return sum(self.file(name).stat().st_size for name in self.manifest.sha256)


def open_package(path: Path | str, *, version: str | None = None, precision: Precision | None = None) -> Package:
    """The package at `models/NAME`: newest version, precision as asked for, else fp32, else the only one there is.

    A folder that itself holds a manifest is taken as it is.
    """
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        folder = _choose(folder, version, precision)
    return Package(folder, _manifest(folder / MANIFEST))


def verify(package: Package) -> None:
    """Every file is there and is the one that was packed."""
    for name, expected in package.manifest.sha256.items():
        file = package.file(name)
        if not file.is_file():
            raise PackageError(f"{file} is missing; export the model again.")
        if digest(file) != expected:
            raise PackageError(f"{file} is not the file that was packed (its sha256 differs); export the model again.")


def padded_length(length: int) -> int:
    return -(-length // PADDING) * PADDING


def digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def versions(folder: Path) -> list[str]:
    """Oldest first."""
    found = (entry.name for entry in _folders(folder) if entry.name.isdecimal())
    return sorted(found, key=int)


def _choose(folder: Path, version: str | None, precision: str | None) -> Path:
    if not folder.is_dir():
        raise PackageError(f"{folder} is not there; `headwaiter export` makes model packages.")
    known = versions(folder)
    if not known:
        raise PackageError(f"{folder} holds no model package; `headwaiter export` makes them.")
    if version is not None and version not in known:
        raise PackageError(f"{folder} has no version {version}; it has {', '.join(known)}.")
    chosen = folder / (version or known[-1])
    precisions = sorted(entry.name for entry in _folders(chosen) if (entry / MANIFEST).is_file())
    if precision in precisions:
        return chosen / str(precision)
    if "fp32" in precisions:
        return chosen / "fp32"
    if len(precisions) == 1:
        return chosen / precisions[0]
    if precisions:
        raise PackageError(f"{chosen} has no fp32; say which of {', '.join(precisions)} is meant.")
    raise PackageError(f"{chosen} holds no model package; `headwaiter export` makes them.")


def _folders(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.iterdir() if entry.is_dir())


def _manifest(file: Path) -> Manifest:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PackageError(f"{file} cannot be read ({error}); export the model again.") from error
    found = content.get("format") if isinstance(content, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise PackageError(f"{file} has package format {found}; this release reads up to {FORMAT}: upgrade headwaiter.")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise PackageError(
            f"{file} is not a valid manifest: {place}: {first['msg']}; export the model again."
        ) from error
