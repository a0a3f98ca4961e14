"""Common parts of the tasks that run a single forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headwaiter.engine.batcher import ForwardJob, ForwardResult
from headwaiter.engine.futures import Pending
from headwaiter.engine.session import Arrays
from headwaiter.engine.worker import Engine
from headwaiter.tasks.results import Timing, Usage
from headwaiter.tasks.task import Task

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class WithUsage(Generic[Answer]):
    """A task's result with its usage and timing."""

    answer: Answer
    usage: Usage
    timing: Timing


class ForwardPassTask(Task[Engine[ForwardJob]]):
    """A task whose inputs each need one row of one forward pass."""

    def submit(
        self,
        arrays: Arrays,
        postprocess: Callable[[Arrays], Answer],
        *,
        started: float,
        deadline: float | None,
    ) -> Pending[WithUsage[Answer]]:
        """Submit one input.

        `started` is the `time.monotonic()` at which preprocessing began. `postprocess` runs in the thread that waits
        for the result.
        """
        preprocessing_seconds = time.monotonic() - started
        job = ForwardJob(arrays, deadline=deadline)
        self.engine.submit(job)

        def with_usage(results: list[ForwardResult]) -> WithUsage[Answer]:
            (result,) = results
            usage = Usage(input_tokens=result.input_tokens, images=int("tokens" not in arrays))
            timing = Timing(1e3 * result.queue_seconds, 1e3 * preprocessing_seconds, 1e3 * result.run_seconds)
            return WithUsage(postprocess(result.outputs), usage, timing)

        return Pending([job.future], with_usage)
