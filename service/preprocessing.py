"""How a model's texts and images become arrays: plain settings, kept in the package's manifest."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Text(_Settings):
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    bos: int | None = None
    max_length: PositiveInt | None = None
    cleans_spaces: bool


class TokenizerFile(_Text):
    """A tokenizer of the `tokenizers` library, special tokens and all, in one JSON file."""

    kind: Literal["tokenizer.json"] = "tokenizer.json"
    file: str
    segments: bool


class SentencePieceFiles(_Text):
    """SentencePiece cuts the text, vocabularies of our own (piece to id) give the numbers."""

    kind: Literal["sentencepiece"] = "sentencepiece"
    eos: int
    unk: int
    source_model: str
    target_model: str
    source_vocabulary: str
    target_vocabulary: str
    added_tokens: dict[str, int]
    """Found whole in a text, before SentencePiece sees it."""
    special_tokens: tuple[str, ...]
    """Left out of decoded text."""
    appends_eos: bool
    language_codes: bool
    """Whether a text may start with the language to translate into, as in `>>fra<< Good morning`."""


TextSettings: TypeAlias = Annotated[TokenizerFile | SentencePieceFiles, Field(discriminator="kind")]


class ExactSize(_Settings):
    kind: Literal["exact"] = "exact"
    height: PositiveInt
    width: PositiveInt


class ShortestEdge(_Settings):
    """Keeps the proportions: the shorter edge gets this length, unless the longer one then passes its limit."""

    kind: Literal["shortest_edge"] = "shortest_edge"
    shortest: PositiveInt
    longest: PositiveInt | None = None
    multiple: PositiveInt | None = None
    """Both edges are cut down to a multiple of this (YOLOS)."""


Resample: TypeAlias = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
PerChannel: TypeAlias = tuple[float, float, float]


class ImageSettings(_Settings):
    """Applied from top to bottom. No padding: images are batched at equal size only."""

    white_behind_transparency: bool
    resize: Annotated[ExactSize | ShortestEdge, Field(discriminator="kind")] | None = None
    resample: Resample
    crop: ExactSize | None = None
    rescale: float | None = None
    mean: PerChannel | None = None
    std: PerChannel | None = None
