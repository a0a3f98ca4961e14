"""One call, whichever way it came: what its headers (gRPC: its metadata) say."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.tasks.errors import InputError
from service.tasks.results import Timing, Usage

REQUEST_ID = "x-request-id"
TIMEOUT = "x-timeout-ms"
_AUTHORIZATION = "authorization"
_LOOPBACK = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "ipv6:%5B::ffff:127.", "ipv6:[::ffff:127.", "unix:")
_ADDRESSES = ("ipv4:", "ipv6:", "unix:")
_TAKEN_OVER = re.compile(r"[\x21-\x7e]{1,128}")  # what a log line and a header can hold


@dataclass(slots=True)
class Call:
    method: str
    request_id: str
    bearer: str | None = None
    timeout: str | None = None
    peer: str | None = None  # as gRPC names it, where it is not trusted to have been let through
    begun: float = field(default_factory=time.monotonic)
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)

    @classmethod
    def begin(cls, method: str, headers: Mapping[str, str], peer: str | None = None) -> Call:
        given = headers.get(REQUEST_ID, "")
        request_id = given if _TAKEN_OVER.fullmatch(given) else uuid.uuid4().hex
        return cls(method, request_id, headers.get(_AUTHORIZATION), headers.get(TIMEOUT), peer)

    @property
    def deadline(self) -> float | None:
        """On time.monotonic()'s clock."""
        if self.timeout is None:
            return None
        if not self.timeout.isascii() or not self.timeout.isdigit() or not 0 < int(self.timeout[:12]) < 10**9:
            raise InputError(f"{TIMEOUT} has to be a whole number of milliseconds above 0", field=TIMEOUT)
        return self.begun + int(self.timeout) / 1e3

    @property
    def is_local(self) -> bool:
        return self.peer is None or self.peer.startswith(_LOOPBACK)

    @property
    def is_left(self) -> bool:
        """gRPC has no address any more of a caller who went before the call was begun with."""
        return self.peer is not None and not self.peer.startswith(_ADDRESSES)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun
