"""Preprocessing settings for text and images, as stored in the manifest."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _TokenizerSettings(_Settings):
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    bos: int | None = None
    max_length: PositiveInt | None = None
    cleans_spaces: bool


class TokenizerFile(_TokenizerSettings):
    """A `tokenizers` JSON file, including its special tokens."""

    kind: Literal["tokenizer.json"] = "tokenizer.json"
    file: str
    segments: bool


class SentencePieceFiles(_TokenizerSettings):
    """SentencePiece models that split text into pieces, and JSON vocabularies that map pieces to ids."""

    kind: Literal["sentencepiece"] = "sentencepiece"
    eos: int
    unk: int
    source_model: str
    target_model: str
    source_vocabulary: str
    target_vocabulary: str
    added_tokens: dict[str, int]
    """Matched as whole tokens before SentencePiece splits the remaining text."""
    special_tokens: tuple[str, ...]
    """Omitted from decoded text."""
    appends_eos: bool
    language_codes: bool
    """Whether a text may start with a target language code, as in `>>fra<< Good morning`."""


TextSettings: TypeAlias = Annotated[TokenizerFile | SentencePieceFiles, Field(discriminator="kind")]


class ExactSize(_Settings):
    kind: Literal["exact"] = "exact"
    height: PositiveInt
    width: PositiveInt


class ShortestEdge(_Settings):
    """Resize the shorter edge to `shortest`, or to less if the longer edge would exceed `longest`."""

    kind: Literal["shortest_edge"] = "shortest_edge"
    shortest: PositiveInt
    longest: PositiveInt | None = None
    multiple: PositiveInt | None = None
    """Round both edges down to a multiple of this (YOLOS)."""


Resample: TypeAlias = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
PerChannel: TypeAlias = tuple[float, float, float]


class ImageSettings(_Settings):
    """Preprocessing steps, applied in the order of the fields. Images of different sizes are never batched together."""

    white_behind_transparency: bool
    resize: Annotated[ExactSize | ShortestEdge, Field(discriminator="kind")] | None = None
    resample: Resample
    crop: ExactSize | None = None
    rescale: float | None = None
    mean: PerChannel | None = None
    std: PerChannel | None = None
