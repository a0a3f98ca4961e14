"""Policies: one row of cache per open episode, kept between its steps.

A step of the environment is three tokens: the action taken before, the return still to go, the state; the first step
has no action. The answer follows from the state. Tokens of several rows go in one after another, since the operator
takes several at once only for a single row.

An episode longer than the model's context goes on with a window: when the context is full, the cache is rebuilt from
its later half. So every answer is the model's own for the last half to whole context, and rebuilding costs one longer
call in as many steps as half the context has.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from service.engine.binding import on_host
from service.engine.cache import RowCache
from service.engine.jobs import Job
from service.engine.session import Arrays, Session
from service.engine.worker import Worker
from service.package import ACTION, RETURN, STATE

_TOKENS = 3  # of a step


class EpisodesFullError(Exception):
    """All rows are taken by episodes that were used a moment ago."""


class EpisodeGoneError(Exception):
    """The episode timed out, or its row was given to another; its history can be replayed into a new one."""


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """What is known at one moment: the return still to go, the state, and what was done in the end."""

    to_go: float
    state: np.ndarray
    action: np.ndarray | None = None


@dataclass(slots=True, eq=False)
class Row:
    """An open episode's place in the cache, and the steps that are in it."""

    slot: int
    used: float
    time: int = 0  # of the environment
    position: int = 0  # in tokens
    steps: list[PolicyStep] = field(default_factory=list)
    gone: str | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    values: np.ndarray
    """An action, or a score for each."""
    queue_seconds: float
    run_seconds: float


@dataclass(slots=True, eq=False)
class StepJob(Job[Stepped]):
    """The next step of an episode, or with no row, the last of a whole history."""

    row: Row | None
    steps: Sequence[PolicyStep]  # the new one, its predecessor's action filled in; or all of them


@dataclass(slots=True, eq=False)
class OpenJob(Job[Row]):
    """A row for a new episode."""


@dataclass(slots=True, eq=False)
class CloseJob(Job[None]):
    row: Row


class Episodes(Worker[Job]):  # type: ignore[type-arg]
    """`idle_seconds` after its last step an episode may lose its row to a new one; after `timeout` it is over."""

    def __init__(
        self,
        session: Session,
        *,
        rows: int,
        idle_seconds: float = 30.0,
        timeout: float = 600.0,
        max_waiting: int = 4096,
    ) -> None:
        manifest = session.package.manifest
        super().__init__(session, max_waiting=max_waiting)
        assert manifest.policy is not None
        self.policy = manifest.policy
        self.timesteps = manifest.limits["timesteps"]
        self.context = min(self.policy.context, self.timesteps)
        room = _TOKENS * self.context
        self.cache = RowCache(manifest, session.memory, rows + 1, room)  # the last row is for whole histories
        self.rows = rows
        self.open: list[Row] = []
        self.used: OrderedDict[int, Row] = OrderedDict()  # by id, least recently used first
        self.idle_seconds, self.timeout = idle_seconds, timeout
        self.meters.rows = rows
        self._answer = "action" if self.policy.actions == "continuous" else "logits"

    def is_busy(self) -> bool:
        return bool(self.line.jobs)

    def work_of(self, job: Job) -> float:  # type: ignore[type-arg]
        return len(job.steps) if isinstance(job, StepJob) and job.row is None else 1.0

    def abandon(self) -> list[Job]:  # type: ignore[type-arg]
        for row in self.open:
            row.gone = "the model was closed"
        return []

    def turn(self) -> None:
        now = time.monotonic()
        for row in [row for row in self.open if now - row.used > self.timeout]:
            self._release(row, f"it was not used for {self.timeout:g} seconds")
        with self.line.changed:
            steps = self._take(now)
        self._run(steps)

    def _take(self, now: float) -> list[StepJob]:
        """The steps to run, one of each episode; episodes are opened and closed in passing."""
        steps: dict[int, StepJob] = {}
        later: list[Job] = []  # type: ignore[type-arg]
        for job in self.line.jobs:
            if isinstance(job, OpenJob):
                self._open(job, now)
            elif isinstance(job, CloseJob):
                if id(job.row) in steps:
                    later.append(job)
                    continue
                self._release(job.row, "it was closed")
                job.succeed(None)
            elif isinstance(job, StepJob) and job.row is not None and id(job.row) in steps:
                later.append(job)  # its predecessor is answered first
            elif isinstance(job, StepJob):
                steps[id(job.row) if job.row is not None else id(job)] = job
        self.line.keep(later)
        return list(steps.values())

    def _open(self, job: OpenJob, now: float) -> None:
        if len(self.open) == self.rows:
            oldest = next(iter(self.used.values()))
            if now - oldest.used < self.idle_seconds:
                self.meters.refused += 1
                job.fail(EpisodesFullError(f"{self.rows} episodes are open and all in use"))
                return
            self._release(oldest, "its row was given to a newer episode")
        row = Row(len(self.open), now)
        self.open.append(row)
        self.used[id(row)] = row
        self.meters.rows_in_use = len(self.open)
        job.succeed(row)
        if job.future.cancelled():
            self._release(row, "it was closed")

    def _release(self, row: Row, why: str) -> None:
        if row.gone is not None:
            return
        row.gone = why
        del self.used[id(row)]
        last = self.open.pop()
        if last is not row:
            self.cache.move(last.slot, row.slot, last.position)
            last.slot = row.slot
            self.open[row.slot] = last
        self.meters.rows_in_use = len(self.open)

    def _run(self, jobs: list[StepJob]) -> None:
        now = time.monotonic()
        alive = []
        for job in jobs:
            if job.is_dead(now):
                self.meters.cancelled += 1
            elif job.row is not None and job.row.gone is not None:
                job.fail(EpisodeGoneError(f"the episode is over: {job.row.gone}"))
            else:
                job.start(now)
                self.meters.queue_seconds += now - job.submitted
                alive.append(job)
        together = [
            job for job in alive if job.row is not None and job.row.position and len(job.row.steps) < self.context
        ]
        if len(together) < 2 or 2 * len(together) < len(self.open):
            together = []
        try:
            for job in alive:
                if job not in together:
                    self._run_alone(job)
            if together:
                self._run_together(together)
        except Exception as error:  # of the runtime: what was being run is lost, the rest is not
            for job in alive:
                if not job.future.done():
                    self.meters.failed += 1
                    if job.row is not None:
                        self._release(job.row, "its last step failed")
                    job.fail(error)
        self.meters.decode_seconds += time.monotonic() - now

    def _run_alone(self, job: StepJob) -> None:
        """One row, all its new tokens at once; a history, or a window that is full, onto an empty row."""
        row = job.row if job.row is not None else Row(self.rows, 0.0)
        if job.row is None:
            kept = list(job.steps)[-self.context :]
            row.time = len(job.steps) - len(kept)
            new, first = kept, True
        elif len(row.steps) >= self.context:
            row.steps[-1] = PolicyStep(row.steps[-1].to_go, row.steps[-1].state, job.steps[0].action)
            half = self.context // 2
            new, first = [*row.steps[len(row.steps) - half :], job.steps[1]], True
            row.time -= half
            row.position = 0
            row.steps = []
        else:
            new, first = list(job.steps), row.position == 0
            if not first:
                row.steps[-1] = PolicyStep(row.steps[-1].to_go, row.steps[-1].state, new[0].action)
        tokens = self._tokens(new, row.time, follows=not first)
        count = tokens["kinds"].shape[1]
        answer = self._call(
            tokens, np.array([count], np.int32), np.array([row.position], np.int32), row.slot, row.slot + 1
        )
        row.position += count
        added = new if first else new[1:]
        row.steps.extend(added)
        row.time += len(added)
        self._finish(job, answer[0])

    def _run_together(self, jobs: list[StepJob]) -> None:
        """All open rows three times; rows that take no part write where their next token will overwrite it."""
        count = len(self.open)
        by_slot = {job.row.slot: job for job in jobs if job.row is not None}
        parts = {
            slot: self._tokens(list(job.steps), self.open[slot].time, follows=True) for slot, job in by_slot.items()
        }
        ones = np.ones(count, np.int32)
        for index in range(_TOKENS):
            tokens = self._blank(count)
            for slot, part in parts.items():
                for name, value in part.items():
                    tokens[name][slot] = value[0, index : index + 1]
            positions = np.array([row.position for row in self.open], np.int32)
            answer = self._call(tokens, ones, positions, 0, count)
            for slot in by_slot:
                self.open[slot].position += 1
        for slot, job in by_slot.items():
            row = self.open[slot]
            row.steps[-1] = PolicyStep(row.steps[-1].to_go, row.steps[-1].state, job.steps[0].action)
            row.steps.append(job.steps[1])
            row.time += 1
            self._finish(job, answer[slot])

    def _finish(self, job: StepJob, answer: np.ndarray) -> None:
        now = time.monotonic()
        if job.row is not None:
            job.row.used = now
            self.used.move_to_end(id(job.row))
        self.did(self.work_of(job))
        self.meters.finished += 1
        started = job.started or now
        job.succeed(Stepped(answer.copy(), started - job.submitted, now - started))

    def _tokens(self, steps: list[PolicyStep], moment: int, *, follows: bool) -> Arrays:
        """The steps as tokens. Where they follow others, the first of them gives only the action that was taken."""
        rows: list[tuple[int, int, PolicyStep]] = []
        for index, step in enumerate(steps):
            when = moment + index - follows
            if not (follows and index == 0):
                rows += [(RETURN, when, step), (STATE, when, step)]
            if index < len(steps) - 1:
                rows.append((ACTION, when, step))
        tokens = self._blank(1, len(rows))
        for place, (kind, when, step) in enumerate(rows):
            tokens["kinds"][0, place], tokens["timesteps"][0, place] = kind, when
            if kind == RETURN:
                tokens["returns"][0, place] = step.to_go
            elif kind == STATE:
                tokens["states"][0, place] = step.state
            else:
                tokens["actions"][0, place] = step.action
        return tokens

    def _blank(self, rows: int, steps: int = 1) -> Arrays:
        return {
            "kinds": np.zeros((rows, steps), np.int64),
            "timesteps": np.zeros((rows, steps), np.int64),
            "returns": np.zeros((rows, steps), np.float32),
            "states": np.zeros((rows, steps, self.policy.state_size), np.float32),
            "actions": np.zeros((rows, steps, self.policy.action_size), np.float32),
        }

    def _call(self, tokens: Arrays, lengths: np.ndarray, positions: np.ndarray, first: int, last: int) -> np.ndarray:
        binding = self.session.binding("decoder")
        for name, value in tokens.items():
            binding.input(name, on_host(value))
        binding.input("lengths", on_host(lengths))
        binding.input("positions", on_host(positions))
        binding.input("total", on_host(np.array((positions + lengths).max(), np.int32)))
        answer = np.empty((last - first, self.policy.action_size), np.float32)
        binding.output(self._answer, on_host(answer))
        self.cache.bind(binding, first, last)
        binding.run()
        self.meters.steps += 1
        self.meters.row_steps += last - first
        return answer
