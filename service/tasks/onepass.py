"""What tasks of one pass share: arrays to the batcher, an answer back with what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.engine.batcher import PassAnswer, PassJob
from service.engine.futures import Pending
from service.engine.session import Arrays
from service.engine.worker import Engine
from service.tasks.results import Timing, Usage

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Accounted(Generic[Answer]):
    answer: Answer
    usage: Usage
    timing: Timing


def submit(
    engine: Engine[PassJob], arrays: Arrays, finish: Callable[[Arrays], Answer], *, begun: float, deadline: float | None
) -> Pending[Accounted[Answer]]:
    """`begun` is when preparing the arrays began, on time.monotonic()'s clock."""
    prepared = time.monotonic() - begun
    job = PassJob(arrays, deadline=deadline)
    engine.submit(job)

    def accounted(parts: list[PassAnswer]) -> Accounted[Answer]:
        (part,) = parts
        usage = Usage(input_tokens=part.input_tokens, images=int("tokens" not in arrays))
        timing = Timing(1e3 * part.queue_seconds, 1e3 * prepared, 1e3 * part.run_seconds)
        return Accounted(finish(part.outputs), usage, timing)

    return Pending([job.future], accounted)
