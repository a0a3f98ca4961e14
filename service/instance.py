"""Which process serves a serve.yaml, so that starting it again changes that one instead of meeting its ports."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from service.config import Service
from service.launch import Cluster, RefusedError, clear_haproxy


@dataclass(frozen=True, slots=True)
class Instance:
    """A `headwaiter serve` that runs: whoever starts it again with the same file finds it here."""

    process: int
    address: str  # of its Ray
    node: str
    host: str
    ports: dict[str, int]

    @classmethod
    def of(cls, service: Service, cluster: Cluster) -> Instance:
        return cls(os.getpid(), cluster.address, cluster.node, service.config.http.host, service.config.ports)

    def demand_same_address(self, service: Service) -> None:
        if (self.host, self.ports) != (service.config.http.host, service.config.ports):
            raise RefusedError(
                f"{service.file} is being served by process {self.process}; "
                "its host and ports cannot change while it runs: stop it first."
            )


class Register:
    """Where the instance of one serve.yaml is written down, under a lock that ends with its process."""

    def __init__(self, file: Path) -> None:
        folder = Path(tempfile.gettempdir()) / f"headwaiter-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise RefusedError(f"{folder} belongs to someone else; set TMPDIR to a folder of your own.")
        name = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]
        self._stream = (folder / f"{name}.json").open("a+", encoding="utf-8")

    def running(self) -> Instance | None:
        """The one that runs; if there is none, this process is the one from now on."""
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = self._read()
            if found is None:
                raise RefusedError("Another `headwaiter serve` with this file is starting or stopping.") from None
            return found
        if killed := self._read():
            clear_haproxy(killed.node)
        self.leave()
        return None

    def enter(self, instance: Instance) -> None:
        self._stream.write(json.dumps(asdict(instance)))
        self._stream.flush()

    def leave(self) -> None:
        self._stream.truncate(0)

    def _read(self) -> Instance | None:
        self._stream.seek(0)
        content = self._stream.read()
        return Instance(**json.loads(content)) if content else None
