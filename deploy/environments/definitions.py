"""Every environment of the project as data. Standard library only: set-up runs before anything is installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_VERSIONS = ("3.11", "3.12", "3.13")
TORCH = "torch==2.13.0"
TORCH_CPU = f"{TORCH}+cpu"


@dataclass(frozen=True, slots=True)
class Environment:
    """Extras of the project, installed into a directory of their own with the versions of a constraints file."""

    name: str
    directory: str
    extras: tuple[str, ...]
    disk_mb: int
    """Size of the installed environment; with torch, that of its CPU build."""
    glibc: str = "2.28"
    """Oldest C library that all its wheels run on."""

    @property
    def constraints(self) -> Path:
        return ROOT / "constraints" / f"{self.name}.txt"

    @property
    def path(self) -> Path:
        return ROOT / self.directory

    @property
    def has_torch(self) -> bool:
        return "export" in self.extras

    def requirement(self, extras: tuple[str, ...] = ()) -> str:
        return f"{ROOT}[{','.join(extras or self.extras)}]"


# The GPU environment has no torch: its CUDA libraries are pinned by torch, and ONNX Runtime needs newer ones.
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("dev", ".venv", ("serve", "cpu", "export", "zoo", "load", "dev"), disk_mb=2_600, glibc="2.31"),
        Environment("serve-cpu", ".venv-cpu", ("serve", "cpu"), disk_mb=700),
        Environment("serve-gpu", ".venv-gpu", ("serve", "gpu"), disk_mb=3_000),
    )
}
OPTIONAL_EXTRAS = {"dev": ("bench",), "serve-cpu": ("s3", "gcs"), "serve-gpu": ("s3", "gcs")}
"""Extras that are installed later into the same environment, so its constraints cover them."""
