"""Downloads model packages from a store and verifies their checksums (`headwaiter fetch`)."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec.core

from headwaiter.package.manifest import MANIFEST, PackageError, digest, open_package, verify

_PACKAGE_ID = re.compile(r"[a-z0-9][a-z0-9.-]*/[0-9]+/(fp32|fp16|int8)")
_TIMEOUT_SECONDS = 60  # without a response or data
_HTTP, _EXTRAS = ("http", "https"), {"s3": "s3", "gs": "gcs", "gcs": "gcs"}


class FetchError(Exception):
    """A package could not be fetched completely; an existing package is left unchanged."""


def fetch(store: str, names: Iterable[str], to: Path) -> list[str]:
    """Download the packages `names` (NAME/VERSION/PRECISION) from a store into `to`.

    The store is a directory or a URL that fsspec supports: http, https, s3 (extra `s3`), gs (extra `gcs`), file.
    Packages that already exist and pass verification are skipped. Returns the names of the downloaded packages and
    raises `FetchError` if one is invalid or incomplete.
    """
    package_ids = list(names)
    for name in package_ids:
        if not _PACKAGE_ID.fullmatch(name):
            raise FetchError(f"{name} is not a package; use NAME/VERSION/PRECISION, such as opus-mt-zh-en/1/int8.")
    for name in package_ids:
        _restore_replaced(to / name)
    missing = [name for name in package_ids if not _is_complete(to / name)]
    if missing:
        source = _Store.open(store)
        for name in missing:
            _fetch(source, name, to)
    return missing


def _is_complete(folder: Path) -> bool:
    try:
        verify(open_package(folder))
    except (PackageError, OSError):
        return False
    return True


def _fetch(store: _Store, name: str, to: Path) -> None:
    """Download into a staging directory and rename it once the package is complete."""
    target = to / name
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=".fetching-"))
    try:
        store.download(name, MANIFEST, staging)
        for file, expected in open_package(staging).manifest.sha256.items():
            actual = digest(store.download(name, file, staging))
            if actual != expected:
                raise FetchError(
                    f"{name}: {file} has SHA-256 checksum {actual}, which differs from its manifest; export the model "
                    f"again and upload it to the store."
                )
        staging.chmod(0o755)
        _replace(target, staging)
    except PackageError as error:
        raise FetchError(f"{name}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(target: Path, staging: Path) -> None:
    """Rename `staging` to `target`. An existing target is deleted afterwards, so that a crash loses neither."""
    replaced = _replaced(target)
    if target.exists():
        target.rename(replaced)
    try:
        staging.rename(target)
    except BaseException:
        _restore_replaced(target)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _restore_replaced(target: Path) -> None:
    """Undo a replacement that was interrupted after its first step."""
    if _replaced(target).exists() and not target.exists():
        _replaced(target).rename(target)


def _replaced(target: Path) -> Path:
    return target.with_name(f".replaced-{target.name}")


@dataclass(frozen=True, slots=True)
class _Store:
    filesystem: Any
    root: str
    address: str  # as given, with credentials

    @classmethod
    def open(cls, address: str) -> _Store:
        location = address if "://" in address else Path(address).resolve().as_uri()
        scheme = location.partition("://")[0]
        try:
            filesystem, root = fsspec.core.url_to_fs(location, **(_http_options() if scheme in _HTTP else {}))
        except ImportError as error:
            needed = f"pip install 'headwaiter[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else str(error)
            raise FetchError(f"{_without_credentials(location)} needs a package that is missing: {needed}.") from error
        except ValueError as error:
            supported = "a directory or a URL with http, https, s3, gs or file"
            raise FetchError(f"{_without_credentials(location)} is not a package store; use {supported}.") from error
        return cls(filesystem, root.rstrip("/"), location.rstrip("/"))

    def download(self, name: str, file: str, folder: Path) -> Path:
        """Download one file of a package into `folder` and return its path."""
        target = folder / file
        if folder not in target.resolve().parents:
            raise FetchError(f"{name}: the manifest lists {file}, which is outside of the package directory.")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.filesystem.get_file(f"{self.root}/{name}/{file}", str(target))
        except Exception as error:  # each filesystem raises its own types
            raise FetchError(
                f"{name}: {file} could not be fetched from {_without_credentials(self.address)}/{name} "
                f"({self._reason(error)})."
            ) from error
        return target

    def _reason(self, error: Exception) -> str:
        if isinstance(error, FileNotFoundError):
            return "it does not exist"
        text, user = str(error) or type(error).__name__, urlsplit(self.address).netloc.rpartition("@")[0]
        return text.replace(f"{user}@", "") if user else text


def _http_options() -> dict[str, Any]:
    import aiohttp

    # Without these, aiohttp ends a download after five minutes and ignores the proxies of the environment.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_SECONDS, sock_read=_TIMEOUT_SECONDS)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}


def _without_credentials(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
