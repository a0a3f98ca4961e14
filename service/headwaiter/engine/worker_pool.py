"""Several worker threads share one queue and session, overlapping Python token selection and single-threaded operators
of one worker with the graph runs of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from headwaiter.engine.counters import EngineCounters
from headwaiter.engine.health import EngineHealth
from headwaiter.engine.job_queue import JobQueue
from headwaiter.engine.jobs import Job
from headwaiter.engine.session import Session
from headwaiter.engine.worker import Worker

JobT = TypeVar("JobT", bound=Job[Any])


class WorkerPool(Generic[JobT]):
    def __init__(
        self,
        session: Session,
        factories: Iterable[Callable[..., Worker[JobT]]],
        *,
        reserved: Callable[..., Worker[JobT]] | None = None,
    ) -> None:
        self.session = session
        self.queue: JobQueue[JobT] = JobQueue(EngineCounters())
        self.workers = [factory(queue=self.queue) for factory in factories]
        self.reserved = None if reserved is None else reserved(queue=self.queue)

    @property
    def all_workers(self) -> list[Worker[JobT]]:
        return self.workers if self.reserved is None else [*self.workers, self.reserved]

    def start(self) -> None:
        for worker in self.all_workers:
            worker.start()

    @property
    def health(self) -> EngineHealth:
        return self.queue.health

    @property
    def is_healthy(self) -> bool:
        return all(worker.is_healthy for worker in self.all_workers)

    @property
    def counters(self) -> EngineCounters:
        return EngineCounters.total([self.queue.counters, *(worker.counters for worker in self.all_workers)])

    def submit(self, job: JobT) -> None:
        self.workers[0].submit(job)

    def close(self, *, drain: bool = True) -> None:
        self.queue.close(drain=drain)
        for worker in self.all_workers:
            worker.join()

    def check_progress(self) -> None:
        for worker in self.all_workers:
            worker.check_progress()
