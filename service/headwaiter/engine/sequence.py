"""Decode jobs, their active sequences, and the selection of next tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from headwaiter.engine.beam import BeamSearch, Hypothesis
from headwaiter.engine.jobs import Job
from headwaiter.engine.sampling import (
    Sampling,
    filter_candidates,
    forbid_repeated_ngrams,
    log_softmax,
    penalise_repetition,
    sample_token,
)
from headwaiter.engine.session import Arrays

FinishReason: TypeAlias = Literal["stop", "length"]

_MAX_TOP_K = 64  # a larger top_k samples from the logits of the whole vocabulary


@dataclass(frozen=True, slots=True)
class DecodingParameters:
    """Fully resolved decoding parameters of one sequence, named as in transformers' `GenerationConfig`."""

    max_new_tokens: int
    eos_token_ids: frozenset[int]
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    sampling: Sampling | None = None
    seed: tuple[int, ...] | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None

    @property
    def penalises_repetition(self) -> bool:
        return self.repetition_penalty != 1.0 or self.no_repeat_ngram_size > 0

    @property
    def needs_full_logits(self) -> bool:
        """Whether token selection needs the logits of the whole vocabulary instead of the top-k tokens."""
        return self.penalises_repetition or (self.sampling is not None and not 0 < self.sampling.top_k <= _MAX_TOP_K)


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """A hypothesis without its end-of-sequence token, and why it ended.

    `finish_reason` is "stop" if the model ended the sequence, "length" if the token limit did.
    """

    tokens: tuple[int, ...]
    score: float
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class DecodingResult:
    """Hypotheses, best first."""

    hypotheses: tuple[FinishedSequence, ...]
    input_tokens: int
    output_tokens: int
    queue_seconds: float
    run_seconds: float


@dataclass(slots=True, eq=False)
class ActiveSequence:
    """A sequence in a cache slot: the number of cached tokens and the next input token."""

    slot: int
    job: DecodeJob
    position: int
    token: int


@dataclass(slots=True, eq=False)
class DecodeJob(Job[DecodingResult]):
    """An encoder input (or none), a decoder prompt and decoding parameters.

    `on_token` is called in the engine's thread with each new token except end-of-sequence tokens, not in beam search.
    """

    source: Arrays
    source_length: int
    prompt: tuple[int, ...]
    params: DecodingParameters
    on_token: Callable[[int], None] | None = None
    sequences: list[ActiveSequence] = field(default_factory=list, init=False)
    search: SingleSearch | BeamSearch = field(init=False)

    def __post_init__(self) -> None:
        self._begin_search()

    def limit_new_tokens(self, limit: int) -> None:
        """Generate at most `limit` tokens; every search then ends within the cache. Call it before the job starts."""
        if limit < 1:
            raise ValueError(f"the prompt has {len(self.prompt):,} tokens, which is more than the cache has")
        if self.params.max_new_tokens > limit:
            self.params = replace(self.params, max_new_tokens=limit)
            self._begin_search()

    def _begin_search(self) -> None:
        p = self.params
        if p.num_beams > 1:
            self.search = BeamSearch(p.num_beams, p.eos_token_ids, p.length_penalty, p.early_stopping, p.max_new_tokens)
        else:
            self.search = SingleSearch(p, np.random.default_rng(p.seed))

    @property
    def num_candidates(self) -> int:
        """Number of top tokens that each decoder step must return for this job."""
        if self.params.needs_full_logits:
            return 1
        top_k = self.params.sampling.top_k if self.params.sampling else 0
        return max(self.search.num_candidates, top_k) + len(self.params.suppress_tokens)


@dataclass(slots=True)
class SingleSearch:
    """Greedy search or sampling over one sequence."""

    params: DecodingParameters
    rng: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0
    done: bool = False
    num_candidates: int = 1

    def select_token(self, tokens: np.ndarray, scores: np.ndarray) -> int:
        """Append one of `tokens` and return it. `scores` are log-probabilities; greedy search takes the first."""
        if (sampling := self.params.sampling) is not None:
            allowed, probabilities = filter_candidates(scores, tokens, sampling)
            token = sample_token(allowed, probabilities, self.rng)
            score = float(scores[np.flatnonzero(tokens == token)[0]])
        else:
            token, score = int(tokens[0]), float(scores[0])
        self.tokens.append(token)
        self.score += score
        self.done = token in self.params.eos_token_ids or len(self.tokens) >= self.params.max_new_tokens
        return token

    def best(self, _count: int) -> list[Hypothesis]:
        return [Hypothesis(tuple(self.tokens), self.score / len(self.tokens) ** self.params.length_penalty)]


def finish_sequence(hypothesis: Hypothesis, params: DecodingParameters) -> FinishedSequence:
    """Strip the end-of-sequence token. One that was forced by `max_new_tokens` does not make the reason "stop"."""
    tokens = hypothesis.tokens
    if not tokens or tokens[-1] not in params.eos_token_ids:
        return FinishedSequence(tokens, hypothesis.score, "length")
    was_forced = params.forced_eos_token_id is not None and len(tokens) >= params.max_new_tokens
    return FinishedSequence(tokens[:-1], hypothesis.score, "length" if was_forced else "stop")


def find_candidates(
    job: DecodeJob, prefix: tuple[int, ...], step: int, outputs: Arrays, slot: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that may follow `prefix` and their log-probabilities; most likely first, unless one is sampled.

    `prefix` is the prompt and all generated tokens (only read if repetition is penalised), `step` the number of
    generated tokens, and `outputs[...][slot]` the decoder outputs of the sequence.
    """
    params = job.params
    forced = params.forced_bos_token_id if step == 0 and params.forced_bos_token_id is not None else None
    if step == params.max_new_tokens - 1 and params.forced_eos_token_id is not None:
        forced = params.forced_eos_token_id
    if forced is not None:
        return _forced(forced, job.search.num_candidates)
    if params.needs_full_logits:
        count = None if params.sampling else job.search.num_candidates
        tokens, scores = _from_logits(params, prefix, outputs["logits"][slot], count)
    else:
        tokens, scores = outputs["top_tokens"][slot], outputs["top_scores"][slot]
        if params.suppress_tokens:
            allowed = ~np.isin(tokens, params.suppress_tokens)
            tokens, scores = tokens[allowed], scores[allowed]
    return tokens, scores


def _forced(token: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    scores = np.full(count, -np.inf, np.float32)
    scores[0] = 0
    return np.full(count, token, np.int64), scores


def _from_logits(
    params: DecodingParameters, prefix: tuple[int, ...], logits: np.ndarray, count: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """As in transformers, repetition limits apply to log-probabilities in beam search and to logits otherwise."""
    scores = log_softmax(logits) if params.num_beams > 1 else logits.copy()
    if params.repetition_penalty != 1.0:
        penalise_repetition(scores, prefix, params.repetition_penalty)
    if params.no_repeat_ngram_size:
        forbid_repeated_ngrams(scores, prefix, params.no_repeat_ngram_size)
    scores[list(params.suppress_tokens)] = -np.inf
    if params.num_beams == 1:
        scores = log_softmax(scores)
    if count is None:
        return np.arange(len(scores)), scores
    if count == 1:
        top = np.array([scores.argmax()])
    else:
        top = np.sort(np.argpartition(scores, -min(count, len(scores)))[-count:])
    order = top[np.argsort(-scores[top], kind="stable")]
    return order, scores[order]
