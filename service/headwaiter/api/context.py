"""Context of one request, built from its HTTP headers or gRPC metadata."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwaiter.tasks.errors import InputError
from headwaiter.tasks.results import Timing, Usage

REQUEST_ID_HEADER = "x-request-id"
TIMEOUT_HEADER = "x-timeout-ms"
_AUTHORIZATION_HEADER = "authorization"
_LOOPBACK_PREFIXES = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "ipv6:%5B::ffff:127.", "ipv6:[::ffff:127.", "unix:")
_ADDRESS_PREFIXES = ("ipv4:", "ipv6:", "unix:")
_VALID_TIMEOUT = re.compile(r"[0-9]{1,9}", re.ASCII)
_VALID_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")  # safe in log lines and headers


@dataclass(slots=True)
class RequestContext:
    method: str
    request_id: str
    bearer: str | None = None
    timeout: str | None = None
    peer: str | None = None  # gRPC peer address; None for HTTP and before it is known: see `Endpoint.accept`
    started_at: float = field(default_factory=time.monotonic)
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)
    is_accepted: bool = False  # authenticated and admitted
    held_bytes: int = 0  # of the request, as counted by `ByteBudget`

    @classmethod
    def begin(cls, method: str, headers: Mapping[str, str], peer: str | None = None) -> RequestContext:
        """Create a context. An invalid or missing request id is replaced by a random one."""
        client_id = headers.get(REQUEST_ID_HEADER, "")
        request_id = client_id if _VALID_REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        return cls(method, request_id, headers.get(_AUTHORIZATION_HEADER), headers.get(TIMEOUT_HEADER), peer)

    @property
    def deadline(self) -> float | None:
        """Deadline in seconds of `time.monotonic()`, or None. Raises InputError if the timeout header is invalid."""
        if self.timeout is None:
            return None
        if not _VALID_TIMEOUT.fullmatch(self.timeout) or not int(self.timeout):
            message = f"{TIMEOUT_HEADER} is invalid; it must be an integer from 1 to 999999999 (milliseconds)"
            raise InputError(message, field=TIMEOUT_HEADER)
        return self.started_at + int(self.timeout) / 1e3

    @property
    def is_local(self) -> bool:
        return self.peer is None or self.peer.startswith(_LOOPBACK_PREFIXES)

    @property
    def is_peer_disconnected(self) -> bool:
        """True if the peer disconnected before dispatch (gRPC reports no peer address)."""
        return self.peer is not None and not self.peer.startswith(_ADDRESS_PREFIXES)

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self.started_at
