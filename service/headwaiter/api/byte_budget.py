"""Bounds the memory that the requests of a model take at the same time."""

from __future__ import annotations

from headwaiter.api.context import RequestContext
from headwaiter.engine.jobs import QueueFullError

_MB = 1 << 20


class ByteBudget:
    """Total size of the requests that are being read and processed. Used by one thread, that of the event loop."""

    def __init__(self, limit_mb: int) -> None:
        self._limit_mb = limit_mb
        self.used_bytes = 0

    def hold(self, context: RequestContext, size: int) -> None:
        """Set the size that a request takes. Raises QueueFullError if it grows beyond what others leave."""
        total = self.used_bytes - context.held_bytes + size
        if size > context.held_bytes and total > self._limit_mb * _MB:
            raise QueueFullError(
                f"requests that are being processed take {self.used_bytes / _MB:,.1f} MiB; "
                f"the limit with this request is {self._limit_mb:,} MiB; retry later"
            )
        self.used_bytes, context.held_bytes = total, size

    def release(self, context: RequestContext) -> None:
        self.used_bytes -= context.held_bytes
        context.held_bytes = 0
