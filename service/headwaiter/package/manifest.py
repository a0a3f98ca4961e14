"""Model packages: the schema of `manifest.json`, and lookup and verification of `models/NAME/VERSION/PRECISION/`."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from headwaiter.package.preprocessing import ImageSettings, TextSettings
from headwaiter.protocol.tasks import task_names

FORMAT: Final = 2
"""Version of the manifest schema. The exporter writes it; packages of any other format are rejected."""
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
RETURN, STATE, ACTION = range(3)  # token types of a policy's input sequence
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9.-]*")

Task = str  # one of `task_names()`
Precision = Literal["fp32", "fp16", "int8"]
Axis = str | int


class PackageError(Exception):
    """A package is missing, damaged or of an unsupported format; the message names the remedy."""


class _ManifestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Port(_ManifestModel):
    """An input or output of a graph. Dynamic axes are names, static axes are sizes."""

    name: str
    dtype: Literal["float32", "float16", "int64", "int32"]
    shape: tuple[Axis, ...]


class Graph(_ManifestModel):
    """One ONNX graph and its operator counts."""

    file: str
    nodes: int
    attention: int  # attention blocks in the graph
    fused: int  # those that run as one fused operator
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


class State(_ManifestModel):
    """A tensor carried from one decoding step to the next.

    `append` states grow in place in one buffer that is bound as both input and output; `replace` states are
    overwritten by each step.
    """

    input: str
    output: str
    dtype: Literal["float32", "float16"]
    shape: tuple[Axis, ...]
    kind: Literal["append", "replace"]


class FusionReport(_ManifestModel):
    attention: int
    fused: int
    operators: dict[str, int]
    unfused_reason: str | None = None  # None if all attention is fused


class Parity(_ManifestModel):
    """Largest absolute differences from the reference, each divided by the range (max minus min) of its values."""

    reference: str
    grid: str
    logits: float
    batched: float
    cached: float | None = None
    positions: float | None = None
    tokens: str | None = None


class PrecisionLoss(_ManifestModel):
    """Differences of a lower precision from fp32 on the same random inputs."""

    logits: float  # RMS error as a fraction of the standard deviation or range of the fp32 output
    tokens: str | None = None  # equal top tokens of a text decoder, as EQUAL/COMPARED
    top_answers: str | None = None  # equal top answers (tokens, classes, actions), as EQUAL/COMPARED
    batched: float  # largest difference between batched and single rows, as a fraction of the output range


class DecodingDefaults(_ManifestModel):
    """The model's default decoding parameters and its special token ids."""

    decoder_start_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    max_new_tokens: int
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0


class Policy(_ManifestModel):
    state_size: int
    action_size: int
    actions: Literal["continuous", "discrete"]
    context: int  # length of the training context, in environment steps


class Preprocessing(_ManifestModel):
    text: TextSettings | None = None
    image: ImageSettings | None = None


class Manifest(_ManifestModel):
    format: Literal[2] = FORMAT
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
    fused: FusionReport
    parity: Parity
    loss: PrecisionLoss | None = None
    cuda: dict[str, dict[str, str]] = {}  # graph -> operator -> reason for its CPU fallback on CUDA devices
    limits: dict[str, int]
    preprocessing: Preprocessing
    decoding: DecodingDefaults | None = None
    policy: Policy | None = None
    noise: int | None = None  # size of the noise vector; set for image generators only
    labels: tuple[str, ...] | None = None
    multi_label: bool = False
    languages: dict[str, str] | None = None
    sha256: dict[str, str]

    @field_validator("task")
    @classmethod
    def _check_task(cls, task: str) -> str:
        if task not in task_names():
            raise ValueError(f"{task!r} is not a known task; known are {', '.join(task_names())}")
        return task

    @property
    def task_key(self) -> str:
        """The task's name in the registry, where image generation is a task of its own."""
        return self.task if self.noise is None else "image-generation"

    @property
    def task_description(self) -> str:
        """The task, with text generation and image generation distinguished."""
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
    """Open the package at `path`, either `models/NAME` or a directory that contains a manifest.

    For `models/NAME`, `version` defaults to the newest one. If `precision` is None or unavailable, fp32 is chosen,
    else the only precision of that version. Raises `PackageError`; file checksums are not verified.
    """
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        folder = _find_package(folder, version, precision)
    return Package(folder, _read_manifest(folder / MANIFEST))


def verify(package: Package) -> None:
    """Raise `PackageError` unless every file of the package exists and matches its SHA-256 checksum."""
    for name, expected in package.manifest.sha256.items():
        file = package.file(name)
        if not file.is_file():
            raise PackageError(f"{file} is missing; export the model again.")
        if digest(file) != expected:
            raise PackageError(f"{file} does not match its SHA-256 checksum in the manifest; export the model again.")


@cache
def padding_multiple() -> int:
    """Number of float32 values in a SIMD register of this CPU: 16 with AVX-512, otherwise 8.

    Sequences are padded to a multiple of this so that attention sums in the same order in every batch, which makes
    results independent of the batch. int8 needs it most: a difference in the last bit can round to another integer.
    """
    cpu_info = Path("/proc/cpuinfo")
    flags = cpu_info.read_text(encoding="ascii", errors="replace").split() if cpu_info.is_file() else []
    return 16 if "avx512f" in flags else 8


def padded_length(length: int) -> int:
    """Round `length` up to a multiple of `padding_multiple()`."""
    multiple = padding_multiple()
    return -(-length // multiple) * multiple


def digest(file: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def versions(folder: Path) -> list[str]:
    """List the versions in `models/NAME`, oldest first."""
    return sorted((entry.name for entry in _subdirectories(folder) if entry.name.isdecimal()), key=int)


def _find_package(folder: Path, version: str | None, precision: str | None) -> Path:
    if not folder.is_dir():
        raise PackageError(f"{folder} does not exist; `headwaiter export` creates model packages.")
    available = versions(folder)
    if not available:
        raise PackageError(f"{folder} contains no model package; `headwaiter export` creates one.")
    if version is not None and version not in available:
        raise PackageError(f"{folder} has no version {version}; available: {', '.join(available)}.")
    selected = folder / (version or available[-1])
    precisions = sorted(entry.name for entry in _subdirectories(selected) if (entry / MANIFEST).is_file())
    if precision in precisions:
        return selected / str(precision)
    if "fp32" in precisions:
        return selected / "fp32"
    if len(precisions) == 1:
        return selected / precisions[0]
    if precisions:
        raise PackageError(f"{selected} has no fp32; set the precision to one of {', '.join(precisions)}.")
    raise PackageError(f"{selected} contains no model package; `headwaiter export` creates one.")


def _subdirectories(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.iterdir() if entry.is_dir())


def _read_manifest(file: Path) -> Manifest:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PackageError(f"{file} cannot be read ({error}); export the model again.") from error
    if isinstance(content, dict):
        _check_format(file, content)
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        raise PackageError(
            f"{file} is not a valid manifest: {location}: {first['msg']}; export the model again."
        ) from error


def _check_format(file: Path, content: dict[str, Any]) -> None:
    """Reject manifests of another format before their fields are validated."""
    package_format = content.get("format")
    if not isinstance(package_format, int) or package_format == FORMAT:
        return
    if package_format > FORMAT:
        raise PackageError(
            f"{file} has package format {package_format}; this release reads format {FORMAT}: upgrade headwaiter."
        )
    raise PackageError(
        f"{file.parent} has package format {package_format}; this release reads format {FORMAT}: replace it with "
        f"`{_export_command(file.parent, content)}`, where SOURCE is the original model "
        f"({content.get('source', 'not recorded')})."
    )


def _export_command(folder: Path, content: dict[str, Any]) -> str:
    package_id = [str(content.get(key, key.upper())) for key in ("name", "version", "precision")]
    name, version, precision = map(shlex.quote, package_id)
    in_models = folder.parts[-3:] == tuple(package_id)
    out = f" --out {shlex.quote(str(folder.parents[2]))}" if in_models else ""
    return f"headwaiter export SOURCE --name {name} --version {version} --precision {precision}{out} --force"
