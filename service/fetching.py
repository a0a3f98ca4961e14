"""`headwaiter fetch`: model packages from a store to this machine, every file held against its hash."""

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

from service.package import MANIFEST, PackageError, open_package, verify

_NAMED = re.compile(r"[a-z0-9][a-z0-9.-]*/[0-9]+/(fp32|fp16|int8)")
_SECONDS = 60


class FetchError(Exception):
    """A package did not come whole; the message says which and why. What was there before still is."""


def fetch(store: str, names: Iterable[str], to: Path) -> list[str]:
    """Names are NAME/VERSION/PRECISION, as in the store. What is there and whole is left; returns the others."""
    wanted = list(names)
    for name in wanted:
        if not _NAMED.fullmatch(name):
            raise FetchError(f"{name} is not a package; write NAME/VERSION/PRECISION, such as opus-mt-zh-en/1/int8.")
    return [name for name in wanted if not _is_whole(to / name) and _fetch(store, name, to)]


def _is_whole(folder: Path) -> bool:
    try:
        verify(open_package(folder))
    except (PackageError, OSError):
        return False
    return True


def _fetch(store: str, name: str, to: Path) -> bool:
    """Into a folder of another name, which gets its own when all is in it."""
    target = to / name
    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=target.parent, prefix=".fetching-"))
    try:
        _get(store, name, MANIFEST, making)
        for file, expected in open_package(making).manifest.sha256.items():
            found = _get(store, name, file, making)
            if found != expected:
                raise FetchError(
                    f"{name}: {file} is not what its manifest says (sha256 {found}); export and store it again."
                )
        if target.exists():
            shutil.rmtree(target)
        making.chmod(0o755)
        making.rename(target)
    except PackageError as error:
        raise FetchError(f"{name}: {error}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return True


def _get(store: str, name: str, file: str, folder: Path) -> str:
    """Returns the file's hash."""
    address = f"{_url(store)}/{name}/{quote(file)}"
    hashed = hashlib.sha256()
    target = folder / file
    if folder not in target.resolve().parents:
        raise FetchError(f"{name}: its manifest names {file}, which would lie outside of the package.")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as source, target.open("wb") as stream:
            while block := source.read(1 << 20):
                hashed.update(block)
                stream.write(block)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise FetchError(f"{name}: {file} could not be fetched from {address} ({reason}).") from error
    return hashed.hexdigest()


def _url(store: str) -> str:
    return store.rstrip("/") if "://" in store else Path(store).resolve().as_uri()
