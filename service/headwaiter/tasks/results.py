"""Result types of the generation tasks, and the usage and timing of every task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwaiter.engine.sequence import FinishReason


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
    """A generated text. `finish_reason` is "stop" if the model ended it, "length" if it was cut off by a limit."""

    text: str
    score: float
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The hypotheses for one input, best first. `text`, `score` and `finish_reason` are those of the best one."""

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

    @property
    def finish_reason(self) -> FinishReason:
        return self.hypotheses[0].finish_reason


def combine_finish_reasons(reasons: Iterable[FinishReason]) -> FinishReason:
    """Return the reason of a text of several sequences: "length" if any of them was cut off."""
    return "length" if "length" in reasons else "stop"
