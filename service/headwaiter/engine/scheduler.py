"""Selection of the queued jobs that are admitted at the next step."""

from __future__ import annotations

from collections import deque

from headwaiter.engine.sequence import DecodeJob
from headwaiter.package.manifest import padded_length

_MAX_PREFILL_TOKENS = 512


class Scheduler:
    """First come, first served, with two limits.

    The first job in the queue is admitted as soon as enough slots are free for it (`num_beams` slots). No job overtakes
    another, so a job waits at most until the jobs before it have finished. While other sequences are being decoded, at
    most `max_prefill_tokens` padded source tokens are encoded between two steps (but always at least one job), which
    bounds the delay of running sequences per step. When nothing is running, all free slots may be filled at once.

    Workers of a pool share one queue, so the order is global; `Decoder` limits each worker to its share of the slots.
    """

    def __init__(self, max_prefill_tokens: int = _MAX_PREFILL_TOKENS) -> None:
        self.max_prefill_tokens = max_prefill_tokens

    def select(self, waiting: deque[DecodeJob], free_slots: int, running: int) -> list[DecodeJob]:
        """Remove the jobs to admit now from `waiting` and return them. `running` is the number of active slots."""
        selected: list[DecodeJob] = []
        tokens = 0
        while waiting and waiting[0].params.num_beams <= free_slots:
            cost = padded_length(max(waiting[0].source_length, len(waiting[0].prompt)))
            if selected and running and tokens + cost > self.max_prefill_tokens:
                break
            tokens += cost
            free_slots -= waiting[0].params.num_beams
            selected.append(waiting.popleft())
        return selected
