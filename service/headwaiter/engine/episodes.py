"""Engine for policies: each open episode keeps a cache slot between its steps.

An environment step is three tokens: the previous action, the return-to-go and the state; the first step has no action.
The prediction is read at the state token. When several episodes run in one batch, their tokens are fed one at a time,
because the attention operator takes several tokens per run only for a single row.

An episode longer than the model's context continues with a window: when the context is full, the cache is rebuilt from
its later half. Every prediction is thus based on the last half to full context, and the longer run that rebuilds the
cache occurs once per half context of steps.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headwaiter.engine.binding import host_buffer
from headwaiter.engine.jobs import Job
from headwaiter.engine.kv_cache import KVCache
from headwaiter.engine.session import Arrays, Session
from headwaiter.engine.worker import Worker
from headwaiter.package.manifest import ACTION, RETURN, STATE

_TOKENS_PER_STEP = 3


class EpisodesFullError(Exception):
    """All slots belong to episodes that were used recently."""


class EpisodeClosedError(Exception):
    """The episode was closed, timed out or lost its slot; its history can be replayed into a new episode."""


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """One environment step: return-to-go, state and, once it is known, the action taken."""

    return_to_go: float
    state: np.ndarray
    action: np.ndarray | None = None


@dataclass(slots=True, eq=False)
class EpisodeState:
    """Cache slot of an episode and the steps stored in it."""

    slot: int
    last_used: float
    timestep: int = 0  # of the next environment step
    position: int = 0  # number of cached tokens
    steps: list[PolicyStep] = field(default_factory=list)
    closed_reason: str | None = None

    def set_last_action(self, action: np.ndarray | None) -> None:
        self.steps[-1] = PolicyStep(self.steps[-1].return_to_go, self.steps[-1].state, action)


@dataclass(frozen=True, slots=True)
class StepResult:
    values: np.ndarray
    """A continuous action, or a score for each discrete action."""
    queue_seconds: float
    run_seconds: float


@dataclass(slots=True, eq=False)
class StepJob(Job[StepResult]):
    """Predict the action of the next step of an episode or, without an episode, of the last step of a history."""

    episode: EpisodeState | None
    steps: Sequence[PolicyStep]  # the previous step with its action, if any, and the new step; or the whole history


@dataclass(slots=True, eq=False)
class OpenJob(Job[EpisodeState]):
    """Allocate a slot for a new episode."""


@dataclass(slots=True, eq=False)
class CloseJob(Job[None]):
    episode: EpisodeState


class Episodes(Worker[Job]):  # type: ignore[type-arg]
    """Runs the steps of all open episodes.

    An episode that was idle for `idle_seconds` may lose its slot to a new one; after `timeout` seconds it is closed.
    """

    def __init__(
        self,
        session: Session,
        *,
        slots: int,
        idle_seconds: float = 30.0,
        timeout: float = 600.0,
    ) -> None:
        manifest = session.package.manifest
        super().__init__(session)
        assert manifest.policy is not None
        self.policy = manifest.policy
        self.timesteps = manifest.limits["timesteps"]
        self.context = min(self.policy.context, self.timesteps)
        max_length = _TOKENS_PER_STEP * self.context
        self.cache = KVCache(manifest, session.memory, slots + 1, max_length)  # the last slot is for whole histories
        self.slots = slots
        self.open_episodes: list[EpisodeState] = []
        self.lru: OrderedDict[int, EpisodeState] = OrderedDict()  # by id, least recently used first
        self._running: list[StepJob] = []
        self.idle_seconds, self.timeout = idle_seconds, timeout
        self.counters.slots = slots
        self._output_name = "action" if self.policy.actions == "continuous" else "logits"

    def is_busy(self) -> bool:
        return bool(self.queue.jobs)

    def estimate_work(self, job: Job) -> float:  # type: ignore[type-arg]
        return len(job.steps) if isinstance(job, StepJob) and job.episode is None else 1.0

    def abort_running(self) -> list[Job]:  # type: ignore[type-arg]
        for episode in self.open_episodes:
            episode.closed_reason = "the model was closed"
        jobs, self._running = self._running, []
        return [*jobs]

    def step(self) -> None:
        now = time.monotonic()
        for episode in [episode for episode in self.open_episodes if now - episode.last_used > self.timeout]:
            self._release(episode, f"it was not used for {self.timeout:g} seconds")
        with self.queue.condition:
            self._running = self._dequeue(now)
        self._run(self._running)
        self._running = []

    def run_alone(self, job: Job) -> None:  # type: ignore[type-arg]
        assert isinstance(job, StepJob)
        self._run([job])

    def _dequeue(self, now: float) -> list[StepJob]:
        """Open and close episodes, and return the steps to run: at most one per episode."""
        steps: dict[int, StepJob] = {}
        remaining: list[Job] = []  # type: ignore[type-arg]
        for job in self.queue.jobs:
            if isinstance(job, OpenJob):
                self._open(job, now)
            elif isinstance(job, CloseJob):
                if id(job.episode) in steps:
                    remaining.append(job)
                    continue
                self._release(job.episode, "the client closed it")
                job.succeed(None)
            elif isinstance(job, StepJob) and job.episode is not None and id(job.episode) in steps:
                remaining.append(job)  # runs after the previous step of the episode
            elif isinstance(job, StepJob):
                steps[id(job.episode) if job.episode is not None else id(job)] = job
        self.queue.replace(remaining)
        return list(steps.values())

    def _open(self, job: OpenJob, now: float) -> None:
        if len(self.open_episodes) == self.slots:
            oldest = next(iter(self.lru.values()))
            if now - oldest.last_used < self.idle_seconds:
                job.fail(
                    EpisodesFullError(f"{self.slots} episodes are open, the maximum, and none is idle; retry later")
                )
                return
            self._release(oldest, "its slot was reassigned to a newer episode")
        episode = EpisodeState(len(self.open_episodes), now)
        self.open_episodes.append(episode)
        self.lru[id(episode)] = episode
        self.counters.slots_in_use = len(self.open_episodes)
        job.succeed(episode)
        if job.future.cancelled():
            self._release(episode, "the request that opened it was cancelled")

    def _release(self, episode: EpisodeState, reason: str) -> None:
        if episode.closed_reason is not None:
            return
        episode.closed_reason = reason
        del self.lru[id(episode)]
        last = self.open_episodes.pop()
        if last is not episode:
            self.cache.move(last.slot, episode.slot, last.position)
            last.slot = episode.slot
            self.open_episodes[episode.slot] = last
        self.counters.slots_in_use = len(self.open_episodes)

    def _run(self, jobs: list[StepJob]) -> None:
        now = time.monotonic()
        alive = []
        for job in jobs:
            if job.is_expired(now):
                self.counters.cancelled += 1
            elif job.episode is not None and job.episode.closed_reason is not None:
                job.fail(EpisodeClosedError(f"the episode is closed: {job.episode.closed_reason}"))
            else:
                self.start_job(job, now)
                alive.append(job)
        batched = [
            job
            for job in alive
            if job.episode is not None and job.episode.position and len(job.episode.steps) < self.context
        ]
        if len(batched) < 2 or 2 * len(batched) < len(self.open_episodes):
            batched = []  # a batch runs all open episodes, so it has to serve at least half of them
        single = [job for job in alive if job not in batched]
        if batched and not self._try_batched(batched):
            single += batched
        for job in single:
            try:
                self._run_single(job)
            except Exception as error:  # affects this job only
                if job.episode is not None:
                    self._release(job.episode, "its last step failed")
                self.fail_job(job, error)
        self.counters.decode_seconds += time.monotonic() - now

    def _try_batched(self, jobs: list[StepJob]) -> bool:
        """Run the jobs as one batch. If that fails, restore their episodes and return False."""
        positions = [episode.position for episode in self.open_episodes]
        try:
            self._run_batched(jobs)
        except Exception:  # the jobs run one by one instead
            for episode, position in zip(self.open_episodes, positions, strict=True):
                episode.position = position
            return False
        return True

    def _run_single(self, job: StepJob) -> None:
        """Run all new tokens of one episode at once. Whole histories and full contexts are run into an empty slot."""
        episode = job.episode if job.episode is not None else EpisodeState(self.slots, 0.0)
        if job.episode is None:
            steps, is_empty = list(job.steps)[-self.context :], True
            episode.timestep = len(job.steps) - len(steps)
        elif len(episode.steps) >= self.context:
            episode.set_last_action(job.steps[0].action)
            half = self.context // 2
            steps, is_empty = [*episode.steps[len(episode.steps) - half :], job.steps[1]], True
            episode.timestep -= half
            episode.position = 0
            episode.steps = []
        else:
            steps, is_empty = list(job.steps), episode.position == 0
            if not is_empty:
                episode.set_last_action(steps[0].action)
        tokens = self._tokens(steps, episode.timestep, continues=not is_empty)
        count = tokens["kinds"].shape[1]
        values = self._run_decoder(
            tokens, np.array([count], np.int32), np.array([episode.position], np.int32), episode.slot, episode.slot + 1
        )
        episode.position += count
        added = steps if is_empty else steps[1:]
        episode.steps.extend(added)
        episode.timestep += len(added)
        self._finish(job, values[0])

    def _run_batched(self, jobs: list[StepJob]) -> None:
        """Run all open slots once per token. Slots without a job write an entry that their next token overwrites."""
        count = len(self.open_episodes)
        by_slot = {job.episode.slot: job for job in jobs if job.episode is not None}
        slot_tokens = {
            slot: self._tokens(list(job.steps), self.open_episodes[slot].timestep, continues=True)
            for slot, job in by_slot.items()
        }
        ones = np.ones(count, np.int32)
        for index in range(_TOKENS_PER_STEP):
            tokens = self._empty_inputs(count)
            for slot, inputs in slot_tokens.items():
                for name, array in inputs.items():
                    tokens[name][slot] = array[0, index : index + 1]
            positions = np.array([episode.position for episode in self.open_episodes], np.int32)
            values = self._run_decoder(tokens, ones, positions, 0, count)
            for slot in by_slot:
                self.open_episodes[slot].position += 1
        for slot, job in by_slot.items():
            episode = self.open_episodes[slot]
            episode.set_last_action(job.steps[0].action)
            episode.steps.append(job.steps[1])
            episode.timestep += 1
            self._finish(job, values[slot])

    def _finish(self, job: StepJob, values: np.ndarray) -> None:
        now = time.monotonic()
        if job.episode is not None:
            job.episode.last_used = now
            self.lru.move_to_end(id(job.episode))
        self.record_work(self.estimate_work(job))
        self.counters.finished += 1
        if job.episode is None:
            self.health.keep_known_good(job)
        started = job.started or now
        job.succeed(StepResult(values.copy(), started - job.submitted, now - started))

    def _tokens(self, steps: list[PolicyStep], first_timestep: int, *, continues: bool) -> Arrays:
        """Encode steps as decoder inputs. With `continues`, the first step is cached except for its action."""
        sequence: list[tuple[int, int, PolicyStep]] = []
        for index, step in enumerate(steps):
            timestep = first_timestep + index - continues
            if not (continues and index == 0):
                sequence += [(RETURN, timestep, step), (STATE, timestep, step)]
            if index < len(steps) - 1:
                sequence.append((ACTION, timestep, step))
        tokens = self._empty_inputs(1, len(sequence))
        for index, (kind, timestep, step) in enumerate(sequence):
            tokens["kinds"][0, index], tokens["timesteps"][0, index] = kind, timestep
            if kind == RETURN:
                tokens["returns"][0, index] = step.return_to_go
            elif kind == STATE:
                tokens["states"][0, index] = step.state
            else:
                tokens["actions"][0, index] = step.action
        return tokens

    def _empty_inputs(self, rows: int, length: int = 1) -> Arrays:
        return {
            "kinds": np.zeros((rows, length), np.int64),
            "timesteps": np.zeros((rows, length), np.int64),
            "returns": np.zeros((rows, length), np.float32),
            "states": np.zeros((rows, length, self.policy.state_size), np.float32),
            "actions": np.zeros((rows, length, self.policy.action_size), np.float32),
        }

    def _run_decoder(
        self, tokens: Arrays, lengths: np.ndarray, positions: np.ndarray, first: int, last: int
    ) -> np.ndarray:
        """Run the decoder over slots `first` to `last` (exclusive)."""
        binding = self.session.binding("decoder")
        for name, array in tokens.items():
            binding.input(name, host_buffer(array))
        binding.input("lengths", host_buffer(lengths))
        binding.input("positions", host_buffer(positions))
        binding.input("total", host_buffer(np.array((positions + lengths).max(), np.int32)))
        values = np.empty((last - first, self.policy.action_size), np.float32)
        binding.output(self._output_name, host_buffer(values))
        self.cache.bind(binding, first, last)
        binding.run()
        self.counters.steps += 1
        self.counters.slot_steps += last - first
        return values
