"""What callers get back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    images: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    queue_ms: float = 0.0
    prepare_ms: float = 0.0
    run_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Words:
    """Texts for one input, best first. `text` and `score` are those of the best."""

    hypotheses: tuple[Hypothesis, ...]
    usage: Usage
    timing: Timing
    sentences: tuple[Hypothesis, ...] = ()  # of a translation that was made sentence by sentence

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        return self.hypotheses[0].score
