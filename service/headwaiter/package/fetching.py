"""Downloads model packages from a store and verifies their checksums (`headwaiter fetch`)."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from headwaiter.package.manifest import MANIFEST, PackageError, open_package, verify

_PACKAGE_ID = re.compile(r"[a-z0-9][a-z0-9.-]*/[0-9]+/(fp32|fp16|int8)")
_TIMEOUT_SECONDS = 60


class FetchError(Exception):
    """A package could not be fetched completely; an existing package is left unchanged."""


def fetch(store: str, names: Iterable[str], to: Path) -> list[str]:
    """Download the packages `names` (NAME/VERSION/PRECISION) from a URL or directory into `to`.

    Packages that already exist and pass verification are skipped. Returns the names of the downloaded packages and
    raises `FetchError` if one is invalid or incomplete.
    """
    package_ids = list(names)
    for name in package_ids:
        if not _PACKAGE_ID.fullmatch(name):
            raise FetchError(f"{name} is not a package; use NAME/VERSION/PRECISION, such as opus-mt-zh-en/1/int8.")
    fetched = []
    for name in package_ids:
        if not _is_complete(to / name):
            _fetch(store, name, to)
            fetched.append(name)
    return fetched


def _is_complete(folder: Path) -> bool:
    try:
        verify(open_package(folder))
    except (PackageError, OSError):
        return False
    return True


def _fetch(store: str, name: str, to: Path) -> None:
    """Download into a staging directory and rename it once the package is complete."""
    target = to / name
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=".fetching-"))
    try:
        _download(store, name, MANIFEST, staging)
        for file, expected in open_package(staging).manifest.sha256.items():
            actual = _download(store, name, file, staging)
            if actual != expected:
                raise FetchError(
                    f"{name}: {file} has SHA-256 checksum {actual}, which differs from its manifest; export the model "
                    f"again and upload it to the store."
                )
        if target.exists():
            shutil.rmtree(target)
        staging.chmod(0o755)
        staging.rename(target)
    except PackageError as error:
        raise FetchError(f"{name}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download(store: str, name: str, file: str, folder: Path) -> str:
    """Download one file of a package into `folder` and return its SHA-256 checksum."""
    url = f"{_store_url(store)}/{name}/{quote(file)}"
    checksum = hashlib.sha256()
    target = folder / file
    if folder not in target.resolve().parents:
        raise FetchError(f"{name}: the manifest lists {file}, which is outside of the package directory.")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as source, target.open("wb") as stream:
            while block := source.read(1 << 20):
                checksum.update(block)
                stream.write(block)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise FetchError(f"{name}: {file} could not be fetched from {url} ({reason}).") from error
    return checksum.hexdigest()


def _store_url(store: str) -> str:
    return store.rstrip("/") if "://" in store else Path(store).resolve().as_uri()
