"""Workers of a decoder: one per thread, and one that is reserved for short requests."""

from __future__ import annotations

from functools import partial
from threading import Event

from headwaiter.engine.decoder import RESERVED_SLOTS, Decoder
from headwaiter.engine.job_queue import JobQueue
from headwaiter.engine.sequence import DecodeJob
from headwaiter.engine.session import Session
from headwaiter.engine.worker import Engine
from headwaiter.engine.worker_pool import WorkerPool

_MIN_SLOTS_PER_WORKER = 16


class ReservedDecoder(Decoder):
    """A worker with few slots that runs short requests while all other workers are occupied by long ones.

    The operating system divides the processors between the workers, so a short request runs at the pace of its own
    small batch instead of that of the large ones. Its slots are in addition to those of the other workers.
    """

    def __init__(self, session: Session, *, max_length: int, queue: JobQueue[DecodeJob]) -> None:
        super().__init__(session, slots=RESERVED_SLOTS, max_length=max_length, queue=queue)
        self.counters.slots = 0
        queue.workers.remove(self)
        queue.reserved_worker = self
        self.work_condition = queue.reserved_condition
        self.is_idle = Event()
        self.is_idle.set()

    def step(self) -> None:
        self.is_idle.clear()
        super().step()
        if not self.is_busy():
            self.is_idle.set()

    def abort_running(self) -> list[DecodeJob]:
        self.is_idle.set()
        return super().abort_running()

    def _yield_to_reserved_worker(self) -> None:
        pass

    def is_busy(self) -> bool:
        return bool(self.running or (self.queue.short_jobs and self._is_needed()))

    def _is_needed(self) -> bool:
        """Whether long requests wait, or run in all other workers."""
        return self.queue.long_jobs > 0 or all(worker.long_jobs for worker in self.queue.workers)

    def _is_eligible(self, job: DecodeJob) -> bool:
        return job.is_short and self._is_needed()

    def _slot_quota(self) -> int:
        return self.slots

    def _most_workers_busy(self) -> bool:
        return True


def open_decoder(session: Session, *, slots: int, max_length: int, max_beams: int = 1) -> Engine[DecodeJob]:
    """Open a decoder with one worker per thread, but at least `_MIN_SLOTS_PER_WORKER` slots per worker.

    With fewer slots, the matrix products of a worker are too small to be efficient. A worker has at least `max_beams`
    slots, because the beams of a job share a worker. If there are many slots, another worker is reserved for short
    requests; on a device it is not needed, because a step takes about as long for many sequences as for one.
    """
    workers = max(1, min(session.threads, slots // max(_MIN_SLOTS_PER_WORKER, max_beams)))
    if session.device != "cpu" or slots < 2 * RESERVED_SLOTS:
        return Decoder(session, slots=slots, max_length=max_length)
    session.open_reduced_sessions(workers)
    slot_counts = [slots // workers + (index < slots % workers) for index in range(workers)]
    return WorkerPool(
        session,
        [partial(Decoder, session, slots=count, max_length=max_length) for count in slot_counts],
        reserved=partial(ReservedDecoder, session, max_length=max_length),
    )
