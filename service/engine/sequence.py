"""A sequence being decoded: one row, or the rows of a beam, and how its next tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from service.engine.beam import Beams, Hypothesis
from service.engine.jobs import Job
from service.engine.sampling import (
    Sampling,
    draw,
    filtered,
    forbid_repeated_ngrams,
    log_softmax,
    penalise_repetition,
)
from service.engine.session import Arrays

_TOP_AT_MOST = 64  # beyond this, sampling looks at the whole vocabulary


@dataclass(frozen=True, slots=True)
class Choosing:
    """How a sequence is decoded, every value settled."""

    max_new_tokens: int
    stop: frozenset[int]
    beams: int = 1
    best: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    sampling: Sampling | None = None
    seed: tuple[int, ...] | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    never: tuple[int, ...] = ()
    forced_first: int | None = None
    forced_last: int | None = None

    @property
    def limits_repetition(self) -> bool:
        return self.repetition_penalty != 1.0 or self.no_repeat_ngram_size > 0

    @property
    def needs_all_scores(self) -> bool:
        """Whether the whole vocabulary is looked at, not only the top of it."""
        return self.limits_repetition or (self.sampling is not None and not 0 < self.sampling.top_k <= _TOP_AT_MOST)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Hypotheses, best first, without the tokens that ended them."""

    hypotheses: tuple[Hypothesis, ...]
    input_tokens: int
    output_tokens: int
    queue_seconds: float
    run_seconds: float


@dataclass(slots=True, eq=False)
class Row:
    """A place in the cache: how many tokens it has, and which one it reads next."""

    slot: int
    job: DecodeJob
    position: int
    token: int


@dataclass(slots=True, eq=False)
class DecodeJob(Job[Decoded]):
    """A source (or none), a prompt, and how to go on. `listener` hears each token, on the engine's thread."""

    source: Arrays
    source_length: int
    prompt: tuple[int, ...]
    choosing: Choosing
    listener: Callable[[int], None] | None = None
    rows: list[Row] = field(default_factory=list, init=False)
    search: Single | Beams = field(init=False)

    def __post_init__(self) -> None:
        c = self.choosing
        if c.beams > 1:
            self.search = Beams(c.beams, c.stop, c.length_penalty, c.early_stopping, c.max_new_tokens)
        else:
            self.search = Single(c, np.random.default_rng(c.seed))

    @property
    def top(self) -> int:
        """How many of the likeliest tokens the step must give."""
        drawn_from = self.choosing.sampling.top_k if self.choosing.sampling else 0
        return max(self.search.candidates, drawn_from) + len(self.choosing.never)


@dataclass(slots=True)
class Single:
    """One row: the likeliest token, or a draw."""

    choosing: Choosing
    rng: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    score: float = 0.0
    done: bool = False
    candidates: int = 1

    def take(self, tokens: np.ndarray, scores: np.ndarray) -> int:
        """Chooses among tokens with their log-probabilities, likeliest first."""
        if (sampling := self.choosing.sampling) is not None:
            allowed, chances = filtered(scores, tokens, sampling)
            token = draw(allowed, chances, self.rng)
            score = float(scores[np.flatnonzero(tokens == token)[0]])
        else:
            token, score = int(tokens[0]), float(scores[0])
        self.tokens.append(token)
        self.score += score
        self.done = token in self.choosing.stop or len(self.tokens) >= self.choosing.max_new_tokens
        return token

    def best(self, _count: int) -> list[Hypothesis]:
        return [Hypothesis(tuple(self.tokens), self.score / len(self.tokens) ** self.choosing.length_penalty)]


def candidates(
    job: DecodeJob, read: tuple[int, ...], step: int, top: Arrays, slot: int
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that a row may go on with, likeliest first, and their log-probabilities. `read` is all it has so
    far, `step` how many of that are new."""
    how = job.choosing
    forced = how.forced_first if step == 0 and how.forced_first is not None else None
    if step == how.max_new_tokens - 1 and how.forced_last is not None:
        forced = how.forced_last
    if forced is not None:
        return _only(forced, job.search.candidates)
    if how.needs_all_scores:
        tokens, scores = _from_all(how, read, top["logits"][slot], None if how.sampling else job.search.candidates)
    else:
        tokens, scores = top["top_tokens"][slot], top["top_scores"][slot]
        if how.never:
            allowed = ~np.isin(tokens, how.never)
            tokens, scores = tokens[allowed], scores[allowed]
    return tokens, scores


def _only(token: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    scores = np.full(count, -np.inf, np.float32)
    scores[0] = 0
    return np.full(count, token, np.int64), scores


def _from_all(
    how: Choosing, read: tuple[int, ...], logits: np.ndarray, count: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Repetition limits act on log-probabilities in a beam, on logits elsewhere: as transformers has it."""
    scores = log_softmax(logits) if how.beams > 1 else logits.copy()
    if how.repetition_penalty != 1.0:
        penalise_repetition(scores, read, how.repetition_penalty)
    if how.no_repeat_ngram_size:
        forbid_repeated_ngrams(scores, read, how.no_repeat_ngram_size)
    scores[list(how.never)] = -np.inf
    if how.beams == 1:
        scores = log_softmax(scores)
    kept = np.arange(len(scores)) if count is None else np.argpartition(-scores, min(count, len(scores) - 1))[:count]
    order = kept[np.argsort(-scores[kept], kind="stable")]
    return order, scores[order]
