"""Dynamic batching for single-forward-pass models: queued inputs run as soon as a worker is free, without a timer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from headwaiter.engine.isolation import isolate_failures
from headwaiter.engine.job_queue import JobQueue
from headwaiter.engine.jobs import Job
from headwaiter.engine.session import Arrays, Session
from headwaiter.engine.worker import Engine, Worker
from headwaiter.engine.worker_pool import WorkerPool
from headwaiter.package.manifest import padded_length

GRAPH = "model"
MAX_PADDING_RATIO = 1.1
"""Maximum ratio of a batch's padded elements to the elements of its members run alone; above it, batching is slower."""
_MAX_SCANNED_JOBS = 512  # bounds the cost of forming a batch when the queue is long


@dataclass(frozen=True, slots=True)
class ForwardResult:
    outputs: Arrays
    """By name, without the batch axis."""
    input_tokens: int
    queue_seconds: float
    run_seconds: float


@dataclass(frozen=True, slots=True)
class InputShape:
    """Size of one input. Inputs can share a batch if their `batch_key` is equal; they are padded to the largest."""

    batch_key: tuple[int, ...]
    elements: int


@dataclass(slots=True, eq=False)
class ForwardJob(Job[ForwardResult]):
    """One input: `tokens` [length] and optionally `segments`, or `pixels` [3, height, width], or `noise` [size]."""

    arrays: Arrays
    input_shape: InputShape = field(default=InputShape((), 0), init=False)

    @property
    def tokens(self) -> int:
        return len(self.arrays["tokens"]) if "tokens" in self.arrays else 0

    @property
    def unpadded_elements(self) -> int:
        return self.tokens if "tokens" in self.arrays else self.input_shape.elements


def form_batch(input_shapes: Sequence[InputShape], budget: int) -> list[int]:
    """Return the ascending indices of the inputs, which are ordered oldest first, that form the next batch.

    The oldest input is always included, so an input waits for at most one batch per input before it. Inputs with the
    same `batch_key` are added, closest in size first and oldest first among equals, while the padded batch has at most
    `budget` elements and satisfies `MAX_PADDING_RATIO`.
    """
    oldest = input_shapes[0]
    batch, largest, total = [0], oldest.elements, oldest.elements
    others = (index for index, shape in enumerate(input_shapes) if index and shape.batch_key == oldest.batch_key)
    for index in sorted(others, key=lambda i: abs(input_shapes[i].elements - oldest.elements)):
        elements = input_shapes[index].elements
        padded = (len(batch) + 1) * max(largest, elements)
        if padded <= min(budget, MAX_PADDING_RATIO * (total + elements)):
            batch.append(index)
            largest, total = max(largest, elements), total + elements
    return sorted(batch)


class Batcher(Worker[ForwardJob]):
    def __init__(
        self,
        session: Session,
        *,
        token_budget: int = 512,
        pixel_budget: int = 4 * 224 * 224,
        queue: JobQueue[ForwardJob] | None = None,
    ) -> None:
        super().__init__(session, queue)
        manifest = session.package.manifest
        self._dtypes = {port.name: port.dtype for port in manifest.graphs[GRAPH].inputs}
        self._budget = token_budget if "tokens" in self._dtypes else pixel_budget
        self._max_length = manifest.limits.get("length")
        self._output_elements = manifest.limits.get("height", 0) * manifest.limits.get("width", 0)
        self._pad_token_id = manifest.preprocessing.text.pad or 0 if manifest.preprocessing.text else 0
        self._running: list[ForwardJob] = []

    def submit(self, job: ForwardJob) -> None:
        expected = self._dtypes.keys() - {"lengths"}
        if job.arrays.keys() != expected:
            raise ValueError(f"the input arrays are {sorted(job.arrays)}; the model takes {sorted(expected)}")
        job.input_shape = self._input_shape(job)
        super().submit(job)

    def is_busy(self) -> bool:
        return bool(self.queue.jobs)

    def estimate_work(self, job: ForwardJob) -> float:
        return job.input_shape.elements

    def abort_running(self) -> list[ForwardJob]:
        jobs, self._running = self._running, []
        return jobs

    def step(self) -> None:
        self._running = self._dequeue_batch()
        if self._running:
            self._run(self._running)
        self._running = []

    def run_alone(self, job: ForwardJob) -> None:
        job.input_shape = self._input_shape(job)
        self._run([job])

    def _input_shape(self, job: ForwardJob) -> InputShape:
        if "pixels" in job.arrays:
            _, height, width = job.arrays["pixels"].shape
            return InputShape((height, width), height * width)
        if "noise" in job.arrays:  # the cost is that of the generated image
            return InputShape((), self._output_elements)
        padded = padded_length(job.tokens)
        return InputShape((), padded if self._max_length is None else max(job.tokens, min(padded, self._max_length)))

    def _dequeue_batch(self) -> list[ForwardJob]:
        with self.queue.condition:
            waiting = self.queue.jobs
            if not waiting:  # another worker has dequeued them
                return []
            input_shapes = [job.input_shape for job in islice(waiting, _MAX_SCANNED_JOBS)]
            jobs = self.queue.take(form_batch(input_shapes, self._budget))
        now = time.monotonic()
        alive = [job for job in jobs if not job.is_expired(now)]
        self.counters.cancelled += len(jobs) - len(alive)
        return alive

    def _run(self, jobs: Sequence[ForwardJob]) -> None:
        start = time.monotonic()
        for job in jobs:
            self.start_job(job, start)
        self.counters.slots_in_use = len(jobs)
        for job, error in isolate_failures(jobs, partial(self._run_batch, start=start)):
            self.fail_job(job, error)
        self.counters.slots_in_use = 0

    def _run_batch(self, jobs: Sequence[ForwardJob], start: float) -> None:
        begin = time.monotonic()
        outputs = self.session.run(GRAPH, self._feeds(jobs))
        self._record_batch(jobs, time.monotonic() - begin)
        self._complete(jobs, outputs, start)

    def _feeds(self, jobs: Sequence[ForwardJob]) -> Arrays:
        if "tokens" not in self._dtypes:
            return {
                name: np.stack([job.arrays[name] for job in jobs]).astype(dtype, copy=False)
                for name, dtype in self._dtypes.items()
            }
        shape = (len(jobs), max(job.input_shape.elements for job in jobs))
        padding = {"tokens": self._pad_token_id, "segments": 0}
        feeds = {name: np.full(shape, padding[name], self._dtypes[name]) for name in jobs[0].arrays}
        for name, rows in feeds.items():
            for row, job in zip(rows, jobs, strict=True):
                row[: job.tokens] = job.arrays[name]
        return feeds | {"lengths": np.array([job.tokens for job in jobs], self._dtypes["lengths"])}

    def _record_batch(self, jobs: Sequence[ForwardJob], seconds: float) -> None:
        elements = len(jobs) * max(job.input_shape.elements for job in jobs)
        self.record_work(sum(job.input_shape.elements for job in jobs))
        self.counters.steps += 1
        self.counters.slot_steps += len(jobs)
        self.counters.elements += elements
        self.counters.padding_elements += elements - sum(job.unpadded_elements for job in jobs)
        self.counters.input_tokens += sum(job.tokens for job in jobs)
        self.counters.encode_seconds += seconds

    def _complete(self, jobs: Sequence[ForwardJob], outputs: Arrays, start: float) -> None:
        now = time.monotonic()
        for index, job in enumerate(jobs):
            if job.future.cancelled():
                self.counters.cancelled += 1
                continue
            self.counters.finished += 1
            self.health.keep_known_good(job)
            # Copied, so that a client that keeps one result does not keep the whole batch in memory.
            result = {name: value[index].copy() for name, value in outputs.items()}
            job.succeed(ForwardResult(result, job.tokens, start - job.submitted, now - start))


def open_batcher(session: Session, *, token_budget: int, pixel_budget: int) -> Engine[ForwardJob]:
    """Open one worker per thread if the model runs on one thread, otherwise a single worker."""
    workers = session.threads // session.threads_per_run
    factory = partial(Batcher, session, token_budget=token_budget, pixel_budget=pixel_budget)
    return factory() if workers == 1 else WorkerPool(session, workers * [factory])
