"""API keys: random, displayed once and stored as SHA-256 hashes, one `NAME sha256:HEX` per line of the key file."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX = "hw_"
_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63})\s+sha256:(?P<digest>[0-9a-f]{64})")
_LOG = logging.getLogger(__name__)


class KeysError(Exception):
    """A key file or key name is invalid; the message states the line and the expected format."""


def make_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def format_key_line(name: str | None, key: str) -> str:
    """The key file's line for `key`; `name` defaults to key-<hash prefix>. Raises KeysError for an invalid name.

    A fast hash is sufficient because keys have 256 random bits; password hashes would slow down every request.
    """
    digest = _digest(key)
    line = f"{f'key-{digest[:6]}' if name is None else name} sha256:{digest}"
    if not _LINE.fullmatch(line):
        raise KeysError(
            f"{name!r} is not a valid key name; use 1 to 64 letters, digits, dots, hyphens and underscores, "
            "starting with a letter or digit."
        )
    return line


def append(file: Path, line: str) -> None:
    """Append a line to the key file, which must be valid. A new file is readable only by its owner."""
    if file.exists():
        Keys.load(file)
    try:
        with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+", encoding="utf-8") as stream:
            content = stream.read()
            stream.write(f"{line}\n" if not content or content.endswith("\n") else f"\n{line}\n")
    except OSError as error:
        raise KeysError(f"{file} cannot be written ({error.strerror}).") from error


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a key file."""

    digests: tuple[tuple[str, str], ...]  # digest, name

    @classmethod
    def load(cls, file: str | Path) -> Keys:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise KeysError(
                f"{file} cannot be read ({reason}); create a key file with `headwaiter key --append {file}`."
            ) from error
        digests = []
        for number, line in enumerate(lines, start=1):
            content = line.partition("#")[0].strip()
            if not content:
                continue
            match = _LINE.fullmatch(content)
            if match is None:
                # The line is not quoted because it may contain a key.
                raise KeysError(
                    f"{file}, line {number}: the format is invalid; expected `NAME sha256:` and 64 hex digits."
                )
            digests.append((match["digest"], match["name"]))
        return cls(tuple(digests))

    def check(self, bearer: str | None) -> str | None:
        """The name of the key in `Bearer KEY`, or None if it is invalid. Runs in constant time."""
        scheme, _, key = (bearer or "").partition(" ")
        digest, matching_name = _digest(key.strip()), None
        for known_digest, name in self.digests:
            if hmac.compare_digest(known_digest, digest):
                matching_name = name
        return matching_name if scheme.lower() == "bearer" else None


class KeyFile:
    """Keys that are reloaded when their file changes, at most every `refresh_seconds`, without restarting replicas."""

    def __init__(self, file: str | Path, *, refresh_seconds: float = 5.0) -> None:
        self._file, self._refresh_seconds = Path(file), refresh_seconds
        self._fingerprint = self._file_fingerprint()
        self._keys = Keys.load(file)
        self._next_refresh = time.monotonic() + refresh_seconds

    def check(self, bearer: str | None) -> str | None:
        if time.monotonic() >= self._next_refresh:
            self._next_refresh = time.monotonic() + self._refresh_seconds
            self._refresh()
        return self._keys.check(bearer)

    def _refresh(self) -> None:
        try:
            fingerprint = self._file_fingerprint()
            if fingerprint != self._fingerprint:
                self._keys, self._fingerprint = Keys.load(self._file), fingerprint
        except (KeysError, OSError) as error:
            _LOG.warning("The keys could not be reloaded; the previous ones stay valid: %s", error)

    def _file_fingerprint(self) -> tuple[int, ...] | None:
        """A value that changes with the file, or None if it does not exist; `Keys.load` reports that."""
        if not self._file.exists():
            return None
        status = self._file.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
