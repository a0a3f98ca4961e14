"""The row of the registry: plain data, named by the distribution's entry point."""

from __future__ import annotations

from headwaiter.protocol.tasks import TaskSpec

SPEC = TaskSpec("reversal", "reversal_pb2", "Reversal", task="reversal_task:Reversal")
