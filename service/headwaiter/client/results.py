"""Results of calls; field names are those of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length"]


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
class BaseResult:
    """Fields of every result. Usage and timing are those of the whole call, also for a batch of inputs."""

    model: Model
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A generated text. `finish_reason` is "stop" if the model ended it, "length" if it was cut off by a limit.

    It is None if the server is too old to report it.
    """

    text: str
    score: float
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText(BaseResult):
    """Generated texts for one input, best first. `text`, `score` and `finish_reason` are those of the best one."""

    hypotheses: tuple[Hypothesis, ...]
    sentences: tuple[Hypothesis, ...] = ()  # set by translations that were split into sentences

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        return self.hypotheses[0].score

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.hypotheses[0].finish_reason


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    index: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationResult(BaseResult):
    """Labels by descending score."""

    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Coordinates are in pixels of the image after EXIF rotation; the origin is the top left corner."""

    name: str
    index: int
    score: float
    x_min: float
    y_min: float
    x_max: float
    y_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionResult(BaseResult):
    """Boxes by descending score. `width` and `height` are those of the image in pixels."""

    width: int
    height: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action(BaseResult):
    """Either `discrete` (an index; `scores` has one value per action) or `continuous` (a vector) is set."""

    discrete: int | None
    continuous: tuple[float, ...] | None
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedImages(BaseResult):
    """Contents of PNG files."""

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
    """Description of a model; fields that do not apply to its task are None or empty."""

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
