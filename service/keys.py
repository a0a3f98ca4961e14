"""API keys: random, shown once, kept as hashes in a file with one `NAME sha256:HEX` a line."""

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
    """A file of keys cannot be used; the message says which line and what would be right."""


def make_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def line_for(name: str | None, key: str) -> str:
    """What goes into the file, under a name made up from the hash where none is given.

    A plain SHA-256 is right here: a key has 256 random bits, which no one guesses at any speed. Slow hashes are for
    passwords; one would only make every request slow.
    """
    digest = _digest(key)
    line = f"{f'key-{digest[:6]}' if name is None else name} sha256:{digest}"
    if not _LINE.fullmatch(line):
        raise KeysError(f"{name!r} cannot name a key; letters, digits, dots, hyphens and underscores can.")
    return line


def append(file: Path, line: str) -> None:
    """Adds a line to the file, which only its owner may read if it is new."""
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
    """Who may call."""

    digests: tuple[tuple[str, str], ...]  # digest, name

    @classmethod
    def load(cls, file: str | Path) -> Keys:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise KeysError(f"{file} cannot be read ({why}); `headwaiter key --append {file}` makes one.") from error
        found = []
        for number, line in enumerate(lines, start=1):
            content = line.partition("#")[0].strip()
            if not content:
                continue
            match = _LINE.fullmatch(content)
            if match is None:
                # The line itself may be a key that someone pasted: it is not repeated.
                raise KeysError(f"{file}, line {number}: a line is `NAME sha256:` and 64 hex digits.")
            found.append((match["digest"], match["name"]))
        return cls(tuple(found))

    def check(self, bearer: str | None) -> str | None:
        """The name of the key in `Bearer KEY`, or nothing. Takes as long for a wrong key as for a right one."""
        scheme, _, key = (bearer or "").partition(" ")
        digest, name = _digest(key.strip()), None
        for known, owner in self.digests:
            if hmac.compare_digest(known, digest):
                name = owner
        return name if scheme.lower() == "bearer" else None


class KeyFile:
    """Keys that follow their file: a key added or revoked counts within seconds, with no replica restarted."""

    def __init__(self, file: str | Path, *, every: float = 5.0) -> None:
        self._file, self._every = Path(file), every
        self._stamp = self._stamped()
        self._keys = Keys.load(file)
        self._due = time.monotonic() + every

    def check(self, bearer: str | None) -> str | None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            self._refresh()
        return self._keys.check(bearer)

    def _refresh(self) -> None:
        try:
            stamp = self._stamped()
            if stamp != self._stamp:
                self._keys, self._stamp = Keys.load(self._file), stamp
        except (KeysError, OSError) as error:
            _LOG.warning("The keys stay as they were: %s", error)

    def _stamped(self) -> tuple[int, ...] | None:
        """Changes with the file's content; nothing where there is no file, which loading then tells."""
        if not self._file.exists():
            return None
        status = self._file.stat()
        return status.st_mtime_ns, status.st_ino, status.st_size


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
