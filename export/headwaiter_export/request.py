"""The arguments of an export and the checks that need neither the model nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwaiter.package.manifest import NAME_PATTERN, Precision, Task
from headwaiter_export.errors import SourceError
from headwaiter_export.packaging.staging import staging_directory
from headwaiter_export.sources.location import check_source, default_name, default_version


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The model to export, the options and the output directory."""

    source: str
    task: Task | None = None
    name: str | None = None
    version: str | None = None
    precision: Precision = "fp32"
    out: Path = Path("models")
    force: bool = False
    allow_unfused: bool = False

    @property
    def package_name(self) -> str:
        return self.name if self.name is not None else default_name(self.source)

    @property
    def package_version(self) -> str:
        return self.version if self.version is not None else default_version(self.source)

    @property
    def folder(self) -> Path:
        return self.out / self.package_name / self.package_version / self.precision


def check_request(request: ExportRequest) -> None:
    """Raise `SourceError` if an option is invalid, the source does not exist or the output is not writable."""
    if not NAME_PATTERN.fullmatch(request.package_name):
        raise SourceError(
            f"{request.package_name!r} is not a package name; use lowercase letters, digits, dots and dashes, starting "
            f"with a letter or digit."
        )
    version = request.package_version
    if not (version.isdecimal() and int(version) > 0 and version == str(int(version))):
        raise SourceError(f"{version!r} is not a version; versions are integers from 1.")
    if request.folder.exists() and not request.force:
        raise SourceError(f"{request.folder} already exists; choose another --version, or replace it with --force.")
    check_source(request.source)
    with staging_directory(request.folder):
        pass  # entering it fails if the output directory is not writable
