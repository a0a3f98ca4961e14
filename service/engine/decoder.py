"""Continuous batching: each step runs all rows, wherever each stands; who is done leaves, who waits takes the place."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

import numpy as np

from service.engine.beam import Beams, Hypothesis
from service.engine.cache import group_by_length
from service.engine.lanes import Lanes
from service.engine.line import Line
from service.engine.scheduler import Scheduler
from service.engine.sequence import Decoded, DecodeJob, Row, Single, candidates
from service.engine.session import Arrays, Session
from service.engine.stepper import Stepper
from service.engine.worker import Engine, Worker
from service.package import padded_length

_ENCODE_BUDGET = 1024  # padded places in one call of the encoder
_IMAGES = 8
_FIRST_GUESS = 32  # steps of a sequence
_ALONE = 8  # rows
_ROWS_OF_A_LANE = 16
_MEMORY = 0.95  # of the usual number of steps, for each sequence that ends


class Decoder(Worker[DecodeJob]):
    """One engine for translation, captioning and generation: it knows rows and tokens, not tasks."""

    def __init__(
        self,
        session: Session,
        *,
        rows: int,
        room: int,
        max_waiting: int = 4096,
        line: Line[DecodeJob] | None = None,
    ) -> None:
        super().__init__(session, max_waiting=max_waiting, line=line)
        self.stepper = Stepper(session, rows, room)
        self.scheduler = Scheduler()
        self.rows: list[Row] = []  # in use; their slots are 0, 1, 2 …
        self.running: dict[DecodeJob, None] = {}  # in the order in which they joined
        self.meters.rows = rows
        self._usual_steps = float(_FIRST_GUESS)
        self._longest_source = session.package.manifest.limits.get("source", 0)

    def submit(self, job: DecodeJob) -> None:
        if job.choosing.beams > self.meters.rows:
            raise ValueError(f"{job.choosing.beams} beams do not fit {self.meters.rows} rows")
        super().submit(job)

    def is_busy(self) -> bool:
        return bool(self.running or self.line.jobs)

    def work_of(self, job: DecodeJob) -> float:
        return job.choosing.beams * min(self._usual_steps, job.choosing.max_new_tokens)

    def room(self) -> int:
        return self.meters.rows - len(self.rows)

    def load(self) -> int:
        return len(self.rows)

    def abandon(self) -> list[DecodeJob]:
        return list(self.running)

    def turn(self) -> None:
        self._release_dead()
        self._join(self._newcomers())
        if self.rows and (top := self._step()) is not None:
            self._choose(top)

    def _newcomers(self) -> list[DecodeJob]:
        with self.line.changed:
            free = min(self.room(), self._share() - len(self.rows))
            chosen = self.scheduler.choose(self.line.jobs, free, len(self.rows))
            self.line.took(chosen)
            return chosen

    def _share(self) -> int:
        """Lanes divide the rows among themselves, unless there are so few that one of them does as well alone."""
        lanes = self.line.takers
        wanted = [job.choosing.beams for job in islice(self.line.jobs, len(lanes) * self.meters.rows)]
        rows = sum(wanted) + sum(lane.load() for lane in lanes)
        return max(_ALONE, *wanted[:1], -(-rows // len(lanes)))

    def _is_crowded(self) -> bool:
        """Whether most lanes are busy: then there are no threads to spare for this one."""
        lanes = self.line.takers
        return 2 * sum(lane.load() > 0 for lane in lanes) > len(lanes) > 1

    def _release_dead(self) -> None:
        now = time.monotonic()
        for job in [job for job in self.running if job.is_dead(now)]:
            self.meters.cancelled += 1
            self._release(job)

    def _join(self, jobs: Sequence[DecodeJob]) -> None:
        if not jobs:
            return
        now = time.monotonic()
        first = len(self.rows)
        for job in jobs:
            job.start(now)
            self.meters.queue_seconds += now - job.submitted
            self.running[job] = None
            for _ in range(job.choosing.beams):
                job.rows.append(Row(len(self.rows), job, 0, job.prompt[-1]))
                self.rows.append(job.rows[-1])
                self.stepper.cache.begin(job.rows[-1].slot)
        try:
            self._encode([job for job in jobs if job.source])
            self.stepper.read_prompts(self.rows[first:], narrow=self._is_crowded())
        except Exception as error:  # of the runtime: it concerns the newcomers alone
            self._fail([job for job in jobs if job in self.running], error)
        self.meters.encode_seconds += time.monotonic() - now

    def _encode(self, jobs: Sequence[DecodeJob]) -> None:
        if not jobs:
            return
        images = "pixels" in jobs[0].source
        if images:
            groups = [list(range(len(jobs)))[at : at + _IMAGES] for at in range(0, len(jobs), _IMAGES)]
        else:
            groups = group_by_length([job.source_length for job in jobs], _ENCODE_BUDGET)
        for group in groups:
            members = [jobs[index] for index in group]
            encoded = self.session.run("encoder", self._batch(members), narrow=self._is_crowded())
            if images:
                places = next(
                    (value.shape[2] for name, value in encoded.items() if name in self.stepper.cache.cross.layouts), 0
                )
                for job in members:
                    job.source_length = places
            self.stepper.fit_sources(max(row.job.source_length for row in self.rows), len(self.rows))
            for index, job in enumerate(members):
                for row in job.rows:
                    self.stepper.cache.place_source(row.slot, encoded, index, job.source_length)

    def _batch(self, jobs: Sequence[DecodeJob]) -> Arrays:
        if "pixels" in jobs[0].source:
            return {"pixels": np.concatenate([job.source["pixels"] for job in jobs])}
        lengths = np.array([job.source_length for job in jobs], np.int32)
        tokens = np.zeros((len(jobs), min(padded_length(int(lengths.max())), self._longest_source)), np.int64)
        for index, job in enumerate(jobs):
            tokens[index, : job.source_length] = job.source["tokens"]
        self.meters.places += tokens.size
        self.meters.padding += tokens.size - int(lengths.sum())
        self.meters.input_tokens += int(lengths.sum())
        return {"tokens": tokens, "lengths": lengths}

    def _step(self) -> Arrays | None:
        begun = time.monotonic()
        try:
            top = self.stepper.step(
                self.rows,
                max(job.top for job in self.running),
                all_scores=any(job.choosing.needs_all_scores for job in self.running),
                narrow=self._is_crowded(),
            )
        except Exception as error:  # of the runtime: the rows of this step are lost, those to come are not
            self._fail(list(self.running), error)
            return None
        self.meters.steps += 1
        self.meters.row_steps += len(self.rows)
        self.did(len(self.rows))
        self.meters.rows_in_use = len(self.rows)
        self.meters.decode_seconds += time.monotonic() - begun
        return top

    def _choose(self, top: Arrays) -> None:
        for row in self.rows:
            row.position += 1
        broken = []
        for job in self.running:
            try:
                if isinstance(job.search, Single):
                    self._choose_one(job, job.search, top)
                else:
                    self._choose_beam(job, job.search, top)
            except Exception as error:  # it concerns this sequence alone
                broken.append((job, error))
        for job, why in broken:  # only now: rows move when others leave, and the scores are by row
            self._fail([job], why)
        for job in [job for job in self.running if job.search.done]:
            self._finish(job)

    def _choose_one(self, job: DecodeJob, search: Single, top: Arrays) -> None:
        (row,) = job.rows
        read = (*job.prompt, *search.tokens) if job.choosing.limits_repetition else ()
        row.token = search.take(*candidates(job, read, len(search.tokens), top, row.slot))
        search.done |= row.position >= self.stepper.cache.room
        if job.listener is not None and row.token not in job.choosing.stop:
            job.listener(row.token)

    def _choose_beam(self, job: DecodeJob, beams: Beams, top: Arrays) -> None:
        tokens, scores = [], []
        for row, running in zip(job.rows, beams.running, strict=True):
            read = (*job.prompt, *running) if job.choosing.limits_repetition else ()
            found = candidates(job, read, len(running), top, row.slot)
            tokens.append(found[0][: beams.candidates])
            scores.append(found[1][: beams.candidates])
        parents = beams.advance(np.stack(tokens), np.stack(scores))
        if not beams.done:
            self._follow(job, parents)
            for row, running in zip(job.rows, beams.running, strict=True):
                row.token = running[-1]

    def _follow(self, job: DecodeJob, parents: list[int]) -> None:
        """Rows take over the past of those they continue. One child of each parent stays where it is."""
        free = [row for index, row in enumerate(job.rows) if index not in parents]
        stayed: set[int] = set()
        rows = []
        for parent in parents:
            row = job.rows[parent]
            if parent in stayed:
                heir = free.pop()
                self.stepper.cache.copy_past(row.slot, heir.slot, row.position)
                row = heir
            stayed.add(parent)
            rows.append(row)
        job.rows = rows

    def _finish(self, job: DecodeJob) -> None:
        now = time.monotonic()
        best = job.search.best(job.choosing.best)
        hypotheses = tuple(Hypothesis(_without_end(h.tokens, job.choosing.stop), h.score) for h in best)
        produced = sum(len(h.tokens) for h in best)
        self._usual_steps = _MEMORY * self._usual_steps + (1 - _MEMORY) * (produced / len(best))
        self.meters.finished += 1
        self.meters.output_tokens += produced
        self._release(job)
        started = job.started or now
        read = job.source_length + len(job.prompt) if not job.source else job.source_length
        job.succeed(Decoded(hypotheses, read, produced, started - job.submitted, now - started))

    def _fail(self, jobs: Iterable[DecodeJob], error: Exception) -> None:
        for job in jobs:
            self.meters.failed += 1
            self._release(job)
            job.fail(error)

    def _release(self, job: DecodeJob) -> None:
        """The last rows move into the places that become free: rows in use stay the first ones."""
        del self.running[job]
        for row in sorted(job.rows, key=lambda row: -row.slot):
            last = self.rows.pop()
            if last is not row:
                self.stepper.cache.move(last.slot, row.slot, last.position)
                last.slot = row.slot
                self.rows[row.slot] = last
        job.rows = []
        self.meters.rows_in_use = len(self.rows)


def open_decoder(session: Session, *, rows: int, room: int) -> Engine[DecodeJob]:
    """As many lanes as there are threads, as long as each has rows enough for a matrix product to be worth it."""
    lanes = max(1, min(session.threads, rows // _ROWS_OF_A_LANE))
    if session.device != "cpu" or lanes == 1:
        return Decoder(session, rows=rows, room=room)
    session.divide(lanes)
    shares = [rows // lanes + (index < rows % lanes) for index in range(lanes)]
    return Lanes(session, [partial(Decoder, session, rows=share, room=room) for share in shares])


def _without_end(tokens: tuple[int, ...], stop: frozenset[int]) -> tuple[int, ...]:
    return tokens[:-1] if tokens and tokens[-1] in stop else tokens
