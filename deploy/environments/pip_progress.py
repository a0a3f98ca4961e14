"""pip's output as progress and, when pip fails, as one sentence."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

_DOWNLOAD = re.compile(r"^\s*Downloading (?:\S*/)?([\w.+-]+?)-\d\S*\.(?:whl|tar\.gz) \(([\d.]+) ?(\wB|bytes)")
_CACHED = re.compile(r"^\s*Using cached ([\w.+-]+?)-\d\S*\.whl(?!\.metadata)")
_INSTALLING = re.compile(r"^Installing collected packages: (.+)")
_MEGABYTES = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
_TERMINAL_SECONDS, _LOG_SECONDS = 0.5, 15.0

# The first pattern that is found in pip's output decides.
_FAILURES = (
    (r"No space left on device", "The disk is full; free some space and run the same command again."),
    (
        r"Temporary failure in name resolution|Failed to establish a new connection|Network is unreachable"
        r"|ConnectTimeoutError|ReadTimeoutError|Connection (?:refused|reset|broken)|ProxyError",
        "The package registry cannot be reached; check the network, or name a mirror with PIP_INDEX_URL, and run the "
        "same command again.",
    ),
    (r"SSLError|CERTIFICATE_VERIFY_FAILED", "The package registry's certificate is not trusted; set PIP_CERT."),
    (r"Permission denied: '([^']+)'", "{0} cannot be written; check its owner and permissions."),
    (r"No matching distribution found for (\S+)", "pip finds no wheel of {0} for this Python and platform."),
    (r"ResolutionImpossible|conflicting dependencies", "The pinned versions contradict each other."),
)


class Progress:
    """Shows what pip is doing: a line that changes in a terminal, a line every 15 seconds elsewhere."""

    def __init__(self, what: str, environment: Path) -> None:
        self._what = what
        self._environment = environment
        self._started = time.monotonic()
        self._packages = 0
        self._megabytes = 0.0
        self._current = ""
        self._total = 0
        self._before = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._terminal = sys.stdout.isatty()

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._terminal:
            sys.stdout.write("\r\x1b[K")
        if kind is None and self._total:
            self._print(
                f"{self._what}: {self._total} installed, {self._megabytes:,.0f} MB downloaded, {self._seconds()}"
            )

    def read(self, line: str) -> None:
        if match := _DOWNLOAD.match(line):
            name, size, unit = match.groups()
            if ".metadata" not in line:
                self._packages += 1
                self._megabytes += float(size) * _MEGABYTES[unit]
                self._current = f"downloading {name} ({size} {unit})"
        elif match := _CACHED.match(line):
            self._packages += 1
            self._current = f"{match[1]} from pip's cache"
        elif match := _INSTALLING.match(line):
            self._total = len(match[1].split(","))
            self._before = self._installed()

    def _show(self) -> None:
        while not self._ended.wait(_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS):
            self._print(f"{self._what}: {self._state()}, {self._seconds()}")

    def _state(self) -> str:
        if self._total:
            return f"installing {min(self._installed() - self._before, self._total)} of {self._total}"
        if self._current:
            return f"{self._packages} fetched, {self._megabytes:,.0f} MB, {self._current}"
        return "resolving versions"

    def _installed(self) -> int:
        return sum(1 for _ in self._environment.glob("lib/python*/site-packages/*.dist-info"))

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._started:.0f} s"

    def _print(self, text: str) -> None:
        sys.stdout.write(f"\r\x1b[K{text}" if self._terminal and not self._ended.is_set() else f"{text}\n")
        sys.stdout.flush()


def explain(output: str) -> str:
    """One sentence about why pip failed."""
    for pattern, sentence in _FAILURES:
        if match := re.search(pattern, output):
            return sentence.format(*match.groups())
    errors = [line for line in output.splitlines() if line.lower().startswith("error")]
    last = (errors or output.strip().splitlines() or ["no output"])[-1]
    return f"pip failed: {last.removeprefix('ERROR: ').rstrip('.')}."
