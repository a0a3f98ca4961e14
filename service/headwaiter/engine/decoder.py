"""Continuous batching: each step decodes all active slots; finished sequences are evicted and queued ones admitted
between steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from headwaiter.engine.beam import BeamSearch
from headwaiter.engine.decoder_runner import DecoderRunner
from headwaiter.engine.isolation import isolate_failures
from headwaiter.engine.job_queue import JobQueue
from headwaiter.engine.kv_cache import group_by_length
from headwaiter.engine.scheduler import Scheduler
from headwaiter.engine.sequence import (
    ActiveSequence,
    DecodeJob,
    DecodingResult,
    SingleSearch,
    find_candidates,
    finish_sequence,
)
from headwaiter.engine.session import Arrays, Session
from headwaiter.engine.worker import Worker
from headwaiter.package.manifest import padded_length

_MAX_ENCODER_TOKENS = 1024  # padded tokens per encoder run
_MAX_ENCODER_IMAGES = 8  # images per encoder run
_INITIAL_STEPS_ESTIMATE = 32  # steps per sequence
_SINGLE_WORKER_SLOTS = 8  # up to this many slots, one worker is as fast as several
_FULL_LOGITS_COST = 2.0  # of a step that selects from the whole vocabulary; an estimate, relative to other steps
_EWMA_DECAY = 0.95  # of the expected steps, per finished job
_YIELDING_WORKERS = 2  # so that the processors of the others are not left idle; an estimate
RESERVED_SLOTS = 8  # of the worker that is reserved for short requests


class Decoder(Worker[DecodeJob]):
    """Engine for the tasks that generate tokens: translation, captioning and generation."""

    def __init__(
        self,
        session: Session,
        *,
        slots: int,
        max_length: int,
        queue: JobQueue[DecodeJob] | None = None,
    ) -> None:
        super().__init__(session, queue)
        self.runner = DecoderRunner(session, slots, max_length)
        self.scheduler = Scheduler()
        self.sequences: list[ActiveSequence] = []  # sequences[i] occupies slot i
        self.running: dict[DecodeJob, None] = {}  # an ordered set, in order of admission
        self.long_jobs = 0  # that run and belong to long requests
        self._run_seconds = 0.0  # duration of the last encoder or decoder run
        self.slots = self.counters.slots = slots
        self._expected_steps = float(_INITIAL_STEPS_ESTIMATE)
        self._max_source_length = session.package.manifest.limits.get("source", 0)

    def submit(self, job: DecodeJob) -> None:
        if job.params.num_beams > self.slots:
            raise ValueError(f"`num_beams` is {job.params.num_beams}; the maximum is {self.slots}")
        # The last generated token is not cached, so there is room for one token more than the cache has.
        job.limit_new_tokens(self.runner.cache.max_length - len(job.prompt) + 1)
        slots = job.group.size * job.params.num_beams
        job.is_short = slots <= RESERVED_SLOTS
        job.is_long = slots > self.slots // 2
        super().submit(job)

    def is_busy(self) -> bool:
        return bool(self.running or self.queue.jobs)

    def estimate_work(self, job: DecodeJob) -> float:
        cost = _FULL_LOGITS_COST if job.params.needs_full_logits else 1.0
        return cost * job.params.num_beams * min(self._expected_steps, job.params.max_new_tokens)

    def free_slots(self) -> int:
        return self.slots - len(self.sequences)

    def active_slots(self) -> int:
        return len(self.sequences)

    def abort_running(self) -> list[DecodeJob]:
        return list(self.running)

    def step(self) -> None:
        self._release_expired()
        self._yield_to_reserved_worker()
        start = time.monotonic()
        self._admit(self._dequeue_jobs())
        self._run_seconds = time.monotonic() - start
        self._yield_to_reserved_worker()
        start = time.monotonic()
        self._decode()
        self._run_seconds = time.monotonic() - start

    def run_alone(self, job: DecodeJob) -> None:
        self._admit([job])
        while self.running:
            self._decode()

    def _decode(self) -> None:
        if self.sequences:
            self._select_tokens(*self._run_decoder())

    def _yield_to_reserved_worker(self) -> None:
        """Leave the processor to the short requests, if this is one of the first workers and it runs a long request.

        It waits at most for the time of its last run, so the long request keeps at least half of its pace.
        """
        reserved = self.queue.reserved_worker
        if self.long_jobs and reserved is not None and self in self.queue.workers[:_YIELDING_WORKERS]:
            reserved.is_idle.wait(self._run_seconds)

    def _dequeue_jobs(self) -> list[DecodeJob]:
        with self.queue.condition:
            free_slots = min(self.free_slots(), self._slot_quota() - len(self.sequences))
            return self.queue.take(
                self.scheduler.select(self.queue.jobs, free_slots, len(self.sequences), self._is_eligible)
            )

    def _is_eligible(self, job: DecodeJob) -> bool:
        """Whether this worker may admit the job. Beside long requests, the reserved worker takes the short ones."""
        reserved = self.queue.reserved_worker
        has_long_requests = self.long_jobs or self.queue.long_jobs
        is_reserved = job.is_short and reserved is not None and reserved.free_slots() >= job.params.num_beams
        return not (has_long_requests and is_reserved)

    def _slot_quota(self) -> int:
        """Maximum slots for this worker: an equal share of all active and queued sequences.

        It is at least `_SINGLE_WORKER_SLOTS`, and enough for the first queued job.
        """
        workers = self.queue.workers
        queued = [job.params.num_beams for job in islice(self.queue.jobs, len(workers) * self.slots)]
        total = sum(queued) + sum(worker.active_slots() for worker in workers)
        return max(_SINGLE_WORKER_SLOTS, *queued[:1], -(-total // len(workers)))

    def _most_workers_busy(self) -> bool:
        """Whether more than half of several workers have active slots; graphs then run with reduced threads."""
        workers = self.queue.workers
        return 2 * sum(worker.active_slots() > 0 for worker in workers) > len(workers) > 1

    def _release_expired(self) -> None:
        now = time.monotonic()
        for job in [job for job in self.running if job.is_expired(now)]:
            self.counters.cancelled += 1
            self._release(job)

    def _admit(self, jobs: Sequence[DecodeJob]) -> None:
        if not jobs:
            return
        now = time.monotonic()
        for job in jobs:
            self.start_job(job, now)
            self.running[job] = None
            self.long_jobs += job.is_long
            for _ in range(job.params.num_beams):
                sequence = ActiveSequence(len(self.sequences), job, 0, job.prompt[-1])
                job.sequences.append(sequence)
                self.sequences.append(sequence)
        for job, error in isolate_failures(jobs, self._encode_and_prefill):
            self._fail([job], error)
        self.counters.encode_seconds += time.monotonic() - now

    def _encode_and_prefill(self, jobs: Sequence[DecodeJob]) -> None:
        """Prepare the slots of new jobs, which are contiguous."""
        sequences = [sequence for job in jobs for sequence in job.sequences]
        for sequence in sequences:
            self.runner.cache.reset_slot(sequence.slot)
        self._encode([job for job in jobs if job.source])
        self.runner.prefill(sequences, reduced_threads=self._most_workers_busy())

    def _encode(self, jobs: Sequence[DecodeJob]) -> None:
        if not jobs:
            return
        has_images = "pixels" in jobs[0].source
        if has_images:
            groups = [
                list(range(len(jobs)))[start : start + _MAX_ENCODER_IMAGES]
                for start in range(0, len(jobs), _MAX_ENCODER_IMAGES)
            ]
        else:
            groups = group_by_length([job.source_length for job in jobs], _MAX_ENCODER_TOKENS)
        for group in groups:
            members = [jobs[index] for index in group]
            encoded = self.session.run(
                "encoder", self._encoder_inputs(members), reduced_threads=self._most_workers_busy()
            )
            if has_images:
                source_length = next(
                    (value.shape[2] for name, value in encoded.items() if name in self.runner.cache.cross.layouts), 0
                )
                for job in members:
                    job.source_length = source_length
            longest = max(sequence.job.source_length for sequence in self.sequences)
            self.runner.resize_sources(longest, len(self.sequences))
            for index, job in enumerate(members):
                for sequence in job.sequences:
                    self.runner.cache.write_source(sequence.slot, encoded, index, job.source_length)

    def _encoder_inputs(self, jobs: Sequence[DecodeJob]) -> Arrays:
        if "pixels" in jobs[0].source:
            return {"pixels": np.concatenate([job.source["pixels"] for job in jobs])}
        lengths = np.array([job.source_length for job in jobs], np.int32)
        tokens = np.zeros((len(jobs), min(padded_length(int(lengths.max())), self._max_source_length)), np.int64)
        for index, job in enumerate(jobs):
            tokens[index, : job.source_length] = job.source["tokens"]
        self.counters.elements += tokens.size
        self.counters.padding_elements += tokens.size - int(lengths.sum())
        self.counters.input_tokens += int(lengths.sum())
        return {"tokens": tokens, "lengths": lengths}

    def _run_decoder(self) -> tuple[Arrays, dict[DecodeJob, Exception]]:
        """Run one decoding step. Returns the outputs by slot, and the jobs whose sequences make the graph fail."""
        start = time.monotonic()
        failures: dict[DecodeJob, Exception] = {}
        num_candidates = max(job.num_candidates for job in self.running)
        return_logits = any(job.params.needs_full_logits for job in self.running)
        try:
            outputs = self.runner.step(
                self.sequences,
                num_candidates,
                return_logits=return_logits,
                reduced_threads=self._most_workers_busy(),
            )
        except Exception:  # must affect only the sequences that cause it
            outputs, failed = self.runner.step_isolated(self.sequences, num_candidates, return_logits=return_logits)
            failures = {sequence.job: error for sequence, error in failed}
        self.counters.steps += 1
        self.counters.slot_steps += len(self.sequences)
        self.counters.slots_in_use = len(self.sequences)
        self.counters.decode_seconds += time.monotonic() - start
        return outputs, failures

    def _select_tokens(self, outputs: Arrays, failures: dict[DecodeJob, Exception]) -> None:
        for sequence in self.sequences:
            sequence.position += 1
        for job in self.running:
            if job in failures:
                continue
            try:
                if isinstance(job.search, SingleSearch):
                    self._select_token(job, job.search, outputs)
                else:
                    self._advance_beam(job, job.search, outputs)
            except Exception as error:  # affects this job only
                failures[job] = error
        self.record_work(
            sum(
                _FULL_LOGITS_COST if sequence.job.params.needs_full_logits else 1.0
                for sequence in self.sequences
                if sequence.job not in failures
            )
        )
        for (
            job,
            cause,
        ) in failures.items():  # after the loop, because releasing slots moves sequences and outputs are by slot
            self._fail([job], cause)
        for job in [job for job in self.running if job.search.done]:
            self._finish(job)

    def _select_token(self, job: DecodeJob, search: SingleSearch, outputs: Arrays) -> None:
        (sequence,) = job.sequences
        prefix = (*job.prompt, *search.tokens) if job.params.penalises_repetition else ()
        sequence.token = search.select_token(*find_candidates(job, prefix, len(search.tokens), outputs, sequence.slot))
        if job.on_token is not None and sequence.token not in job.params.eos_token_ids:
            job.on_token(sequence.token)

    def _advance_beam(self, job: DecodeJob, search: BeamSearch, outputs: Arrays) -> None:
        tokens, scores = [], []
        for sequence, running in zip(job.sequences, search.running, strict=True):
            prefix = (*job.prompt, *running) if job.params.penalises_repetition else ()
            beam_tokens, beam_scores = find_candidates(job, prefix, len(running), outputs, sequence.slot)
            tokens.append(beam_tokens[: search.num_candidates])
            scores.append(beam_scores[: search.num_candidates])
        parents = search.advance(np.stack(tokens), np.stack(scores))
        if not search.done:
            self._reorder_beam(job, parents)
            for sequence, running in zip(job.sequences, search.running, strict=True):
                sequence.token = running[-1]

    def _reorder_beam(self, job: DecodeJob, parents: list[int]) -> None:
        """Copy the cache of each parent to its children. The first child of each parent keeps the parent's slot."""
        unused = [sequence for index, sequence in enumerate(job.sequences) if index not in parents]
        continued: set[int] = set()
        children = []
        for parent in parents:
            sequence = job.sequences[parent]
            if parent in continued:
                copy = unused.pop()
                self.runner.cache.copy_past(sequence.slot, copy.slot, sequence.position)
                sequence = copy
            continued.add(parent)
            children.append(sequence)
        job.sequences = children

    def _finish(self, job: DecodeJob) -> None:
        now = time.monotonic()
        best = job.search.best(job.params.num_return_sequences)
        hypotheses = tuple(finish_sequence(hypothesis, job.params) for hypothesis in best)
        output_tokens = sum(len(h.tokens) for h in best)
        self._expected_steps = _EWMA_DECAY * self._expected_steps + (1 - _EWMA_DECAY) * (output_tokens / len(best))
        self.counters.finished += 1
        self.counters.output_tokens += output_tokens
        self.health.keep_known_good(job)
        self._release(job)
        started = job.started or now
        input_tokens = job.source_length + len(job.prompt) if not job.source else job.source_length
        job.succeed(DecodingResult(hypotheses, input_tokens, output_tokens, started - job.submitted, now - started))

    def _fail(self, jobs: Iterable[DecodeJob], error: Exception) -> None:
        for job in jobs:
            self._release(job)
            self.fail_job(job, error)

    def _release(self, job: DecodeJob) -> None:
        """Free the slots of a job and move the last sequences into them, so that active slots stay contiguous."""
        del self.running[job]
        self.long_jobs -= job.is_long
        for sequence in sorted(job.sequences, key=lambda sequence: -sequence.slot):
            last = self.sequences.pop()
            if last is not sequence:
                self.runner.cache.move(last.slot, sequence.slot, last.position)
                last.slot = sequence.slot
                self.sequences[sequence.slot] = last
        job.sequences = []
        self.counters.slots_in_use = len(self.sequences)
