"""What callers get back; the names are the protocol's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int
    output_tokens: int
    images: int


@dataclass(frozen=True, slots=True)
class Timing:
    queue_ms: float
    prepare_ms: float
    run_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Usage and timing are those of the whole call, where it had several inputs."""

    model: Model
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True)
class Hypothesis:
    text: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Words(Answer):
    """Texts for one input, best first. `text` and `score` are those of the best."""

    hypotheses: tuple[Hypothesis, ...]
    sentences: tuple[Hypothesis, ...] = ()  # of a translation that was made sentence by sentence

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        return self.hypotheses[0].score


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    index: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified(Answer):
    """Likeliest first."""

    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """In pixels of the image that was sent, upright; x to the right, y down."""

    name: str
    index: int
    score: float
    x_min: float
    y_min: float
    x_max: float
    y_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected(Answer):
    """Likeliest first."""

    width: int
    height: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action(Answer):
    """`discrete` is an index with the `scores` of all, `continuous` a vector."""

    discrete: int | None
    continuous: tuple[float, ...] | None
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedImages(Answer):
    """Each as the content of a PNG file."""

    images: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    name: str
    task: str
    version: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Languages:
    source: tuple[str, ...]
    target: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model in full; what its task does not have is None or empty."""

    name: str
    task: str
    version: str
    family: str
    precision: str
    device: str
    limits: Mapping[str, int]
    labels: tuple[str, ...]
    languages: Languages | None
    state_size: int | None
    action_size: int | None
    action_kind: str | None
    decoding: Mapping[str, float] | None
    license: str
    source: str
    attribution: str
