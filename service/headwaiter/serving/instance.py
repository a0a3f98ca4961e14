"""Registry of the process that serves a serve.yaml, so that a second `headwaiter serve` updates the running service."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from headwaiter.serving import haproxy_files
from headwaiter.serving.cluster import Cluster
from headwaiter.serving.config import Service
from headwaiter.serving.errors import PreconditionError


@dataclass(frozen=True, slots=True)
class Instance:
    """A running `headwaiter serve`."""

    pid: int
    address: str  # of the Ray cluster; empty with --single-process
    node: str  # Ray node id; empty with --single-process
    host: str
    ports: dict[str, int]
    is_ready: bool = True
    """False while the models start for the first time."""

    @classmethod
    def for_service(cls, service: Service, cluster: Cluster) -> Instance:
        return cls(
            pid=os.getpid(),
            address=cluster.address,
            node=cluster.node,
            host=service.config.http.host,
            ports=service.config.ports,
        )

    @classmethod
    def for_single_process(cls, service: Service) -> Instance:
        return cls(os.getpid(), "", "", service.config.http.host, service.config.ports)

    def check_same_address(self, service: Service) -> None:
        """Raise PreconditionError if the service has another host or other ports than the running instance."""
        if (self.host, self.ports) != (service.config.http.host, service.config.ports):
            raise PreconditionError(
                f"The host or ports in {service.file} differ from those of the running process {self.pid}; "
                "stop it before changing them."
            )


class InstanceRegistry:
    """Record of the instance of one serve.yaml, held under a lock that the kernel releases with the process."""

    def __init__(self, file: Path) -> None:
        folder = Path(tempfile.gettempdir()) / f"headwaiter-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PreconditionError(f"{folder} is owned by another user; set TMPDIR to a directory that you own.")
        name = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]
        self._stream = (folder / f"{name}.json").open("a+", encoding="utf-8")

    def claim(self) -> Instance | None:
        """Return the running instance; if there is none, make this process the owner and return None."""
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            instance = self._read()
            if instance is None or not instance.is_ready:
                raise PreconditionError(
                    "Another `headwaiter serve` of this file is starting or stopping; try again when it has finished."
                ) from None
            return instance
        if (killed := self._read()) and killed.node:
            haproxy_files.remove(killed.node)
        self.clear()
        return None

    def find(self) -> Instance | None:
        """Return the running instance, also while its models start; None if no process serves the file.

        Raises PreconditionError while Ray starts or the service stops.
        """
        try:
            fcntl.flock(self._stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            instance = self._read()
            if instance is None:
                raise PreconditionError("This service is starting or stopping; try again in some seconds.") from None
            return instance
        fcntl.flock(self._stream, fcntl.LOCK_UN)
        return None

    def publish(self, instance: Instance) -> None:
        self.clear()
        self._stream.write(json.dumps(asdict(instance)))
        self._stream.flush()

    def clear(self) -> None:
        self._stream.truncate(0)

    def _read(self) -> Instance | None:
        self._stream.seek(0)
        content = self._stream.read()
        return Instance(**json.loads(content)) if content else None
