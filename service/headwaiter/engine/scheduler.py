"""Selection of the queued jobs that are admitted at the next step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headwaiter.engine.sequence import DecodeJob
from headwaiter.package.manifest import padded_length

_MAX_PREFILL_TOKENS = 512


class Scheduler:
    """In the order of the queue, with two limits.

    The first eligible job is admitted as soon as enough slots are free for it (`num_beams` slots). No job overtakes
    another, so a job waits at most until the jobs before it have finished. While other sequences are being decoded, at
    most `max_prefill_tokens` padded source tokens are encoded between two steps (but always at least one job), which
    bounds the delay of running sequences per step. When nothing is running, all free slots may be filled at once.

    Workers of a pool share one queue, so the order is global; `Decoder` limits each worker to its share of the slots.
    """

    def __init__(self, max_prefill_tokens: int = _MAX_PREFILL_TOKENS) -> None:
        self.max_prefill_tokens = max_prefill_tokens

    def select(
        self,
        waiting: Iterable[DecodeJob],
        free_slots: int,
        running: int,
        is_eligible: Callable[[DecodeJob], bool] = lambda _: True,
    ) -> list[int]:
        """Return the indices of the jobs to admit now. `running` is the number of active slots."""
        selected: list[int] = []
        tokens = 0
        for index, job in enumerate(waiting):
            if not free_slots:
                break
            if not is_eligible(job):
                continue
            cost = padded_length(max(job.source_length, len(job.prompt)))
            is_over_budget = selected and running and tokens + cost > self.max_prefill_tokens
            if job.params.num_beams > free_slots or is_over_budget:
                break
            tokens += cost
            free_slots -= job.params.num_beams
            selected.append(index)
        return selected
