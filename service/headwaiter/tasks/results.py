"""Result types of the generation tasks, and the usage and timing of every task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and images that were processed for a request."""

    input_tokens: int = 0
    output_tokens: int = 0
    images: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds spent in the queue, in preprocessing and in the model."""

    queue_ms: float = 0.0
    prepare_ms: float = 0.0
    run_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The hypotheses for one input, best first. `text` and `score` are those of the best hypothesis."""

    hypotheses: tuple[Hypothesis, ...]
    usage: Usage
    timing: Timing
    sentences: tuple[Hypothesis, ...] = ()  # best hypothesis of each sentence; translation only

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        return self.hypotheses[0].score
