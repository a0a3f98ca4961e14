"""Models that answer in one pass: what is waiting goes in as soon as the session is free, in batches that fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from service.engine.jobs import Job
from service.engine.lanes import Lanes
from service.engine.line import Line
from service.engine.session import Arrays, Session
from service.engine.worker import Engine, Worker
from service.package import padded_length

GRAPH = "model"
MOST_PADDING = 1.1  # a batch's places per place that its members would take alone; beyond it, batching stops paying
_LOOKED_AT = 512  # so many of those waiting are compared, that a turn's cost does not grow with the queue


@dataclass(frozen=True, slots=True)
class PassAnswer:
    outputs: Arrays
    """By name, without the axis of rows."""
    input_tokens: int
    queue_seconds: float
    run_seconds: float


@dataclass(frozen=True, slots=True)
class Extent:
    """The room that one input takes: members of a batch are of one kind, and each takes as much as the largest."""

    kind: tuple[int, ...]
    places: int


@dataclass(slots=True, eq=False)
class PassJob(Job[PassAnswer]):
    """One input: `tokens` [length] and perhaps `segments`, or `pixels` [3, height, width], or `noise` [size]."""

    arrays: Arrays
    extent: Extent = field(default=Extent((), 0), init=False)

    @property
    def tokens(self) -> int:
        return len(self.arrays["tokens"]) if "tokens" in self.arrays else 0

    @property
    def filled(self) -> int:
        return self.tokens if "tokens" in self.arrays else self.extent.places


def form_batch(extents: Sequence[Extent], budget: int) -> list[int]:
    """Which of those waiting, oldest first, run together next: indices, ascending.

    The oldest always, so that nobody waits for more than those before him. Then the others of its kind, the most
    alike in size first and among these the oldest, as long as the padded places stay within the budget and near
    what the members would take alone.
    """
    oldest = extents[0]
    chosen, widest, alone = [0], oldest.places, oldest.places
    others = (index for index, extent in enumerate(extents) if index and extent.kind == oldest.kind)
    for index in sorted(others, key=lambda i: abs(extents[i].places - oldest.places)):
        own = extents[index].places
        together = (len(chosen) + 1) * max(widest, own)
        if together <= min(budget, MOST_PADDING * (alone + own)):
            chosen.append(index)
            widest, alone = max(widest, own), alone + own
    return sorted(chosen)


class Batcher(Worker[PassJob]):
    def __init__(
        self,
        session: Session,
        *,
        token_budget: int = 512,
        pixel_budget: int = 4 * 224 * 224,
        max_waiting: int = 4096,
        line: Line[PassJob] | None = None,
    ) -> None:
        super().__init__(session, max_waiting=max_waiting, line=line)
        manifest = session.package.manifest
        self._dtypes = {port.name: port.dtype for port in manifest.graphs[GRAPH].inputs}
        self._budget = token_budget if "tokens" in self._dtypes else pixel_budget
        self._longest = manifest.limits.get("length")
        self._painted = manifest.limits.get("height", 0) * manifest.limits.get("width", 0)
        self._fill = manifest.preprocessing.text.pad or 0 if manifest.preprocessing.text else 0
        self._running: list[PassJob] = []

    def submit(self, job: PassJob) -> None:
        expected = self._dtypes.keys() - {"lengths"}
        if job.arrays.keys() != expected:
            raise ValueError(f"the arrays are {sorted(job.arrays)}; the model takes {sorted(expected)}")
        job.extent = self._extent(job)
        super().submit(job)

    def is_busy(self) -> bool:
        return bool(self.line.jobs)

    def work_of(self, job: PassJob) -> float:
        return job.extent.places

    def abandon(self) -> list[PassJob]:
        jobs, self._running = self._running, []
        return jobs

    def turn(self) -> None:
        self._running = self._take_batch()
        if self._running:
            self._run(self._running)
        self._running = []

    def _extent(self, job: PassJob) -> Extent:
        if "pixels" in job.arrays:
            _, height, width = job.arrays["pixels"].shape
            return Extent((height, width), height * width)
        if "noise" in job.arrays:  # what it takes is what it becomes
            return Extent((), self._painted)
        padded = padded_length(job.tokens)
        return Extent((), padded if self._longest is None else max(job.tokens, min(padded, self._longest)))

    def _take_batch(self) -> list[PassJob]:
        with self.line.changed:
            waiting = self.line.jobs
            if not waiting:  # another lane was quicker
                return []
            chosen = set(form_batch([job.extent for job in islice(waiting, _LOOKED_AT)], self._budget))
            jobs = [waiting[index] for index in sorted(chosen)]
            self.line.keep(job for index, job in enumerate(waiting) if index not in chosen)
        now = time.monotonic()
        alive = [job for job in jobs if not job.is_dead(now)]
        self.meters.cancelled += len(jobs) - len(alive)
        return alive

    def _run(self, jobs: Sequence[PassJob]) -> None:
        begun = time.monotonic()
        for job in jobs:
            job.start(begun)
            self.meters.queue_seconds += begun - job.submitted
        self.meters.rows_in_use = len(jobs)
        try:
            outputs = self.session.run(GRAPH, self._feeds(jobs))
        except Exception as error:  # of the runtime: it concerns this batch alone
            self.meters.failed += len(jobs)
            for job in jobs:
                job.fail(error)
        else:
            self._count(jobs, time.monotonic() - begun)
            self._answer(jobs, outputs, begun)
        self.meters.rows_in_use = 0

    def _feeds(self, jobs: Sequence[PassJob]) -> Arrays:
        if "tokens" not in self._dtypes:
            return {
                name: np.stack([job.arrays[name] for job in jobs]).astype(dtype, copy=False)
                for name, dtype in self._dtypes.items()
            }
        shape = (len(jobs), max(job.extent.places for job in jobs))
        fills = {"tokens": self._fill, "segments": 0}
        feeds = {name: np.full(shape, fills[name], self._dtypes[name]) for name in jobs[0].arrays}
        for name, rows in feeds.items():
            for row, job in zip(rows, jobs, strict=True):
                row[: job.tokens] = job.arrays[name]
        return feeds | {"lengths": np.array([job.tokens for job in jobs], self._dtypes["lengths"])}

    def _count(self, jobs: Sequence[PassJob], seconds: float) -> None:
        places = len(jobs) * max(job.extent.places for job in jobs)
        self.did(sum(job.extent.places for job in jobs))
        self.meters.steps += 1
        self.meters.row_steps += len(jobs)
        self.meters.places += places
        self.meters.padding += places - sum(job.filled for job in jobs)
        self.meters.input_tokens += sum(job.tokens for job in jobs)
        self.meters.encode_seconds += seconds

    def _answer(self, jobs: Sequence[PassJob], outputs: Arrays, begun: float) -> None:
        now = time.monotonic()
        for index, job in enumerate(jobs):
            if job.future.cancelled():
                self.meters.cancelled += 1
                continue
            self.meters.finished += 1
            # Copied: a row that is kept must not keep the whole batch.
            own = {name: value[index].copy() for name, value in outputs.items()}
            job.succeed(PassAnswer(own, job.tokens, begun - job.submitted, now - begun))


def open_batcher(session: Session, *, token_budget: int, pixel_budget: int) -> Engine[PassJob]:
    """As many lanes as there are threads, where a pass takes only one of them."""
    lanes = session.threads // session.threads_of_a_pass
    make = partial(Batcher, session, token_budget=token_budget, pixel_budget=pixel_budget)
    return make() if lanes == 1 else Lanes(session, lanes * [make])
