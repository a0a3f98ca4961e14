"""The numbers that a system is built from, checked before anything is built."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from export.errors import SourceError


class Sizes(BaseModel):
    """Subclasses add fields, each with the default that the recipe trains, and say which must divide which."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls, given: dict[str, Any], where: str) -> Self:
        """From a config; what is wrong with it becomes one sentence."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                raise SourceError(f"{where} has no size {name!r}; it has {', '.join(cls.model_fields)}.") from error
            reason = first["msg"].removeprefix("Value error, ")
            raise SourceError(f"{where}: {f'{name}: ' if name else ''}{reason}.") from error

    def demand_divides(self, part: str, whole: str) -> None:
        if getattr(self, whole) % getattr(self, part):
            raise ValueError(f"{whole} is {getattr(self, whole)}, which {part} {getattr(self, part)} does not divide")


class Width(Sizes):
    """Of nearly all systems: vectors of `size` numbers, split over `heads`, in `layers` blocks."""

    size: PositiveInt = 64
    heads: PositiveInt = 4
    layers: PositiveInt = 2
    hidden: PositiveInt = 128  # inside the feed-forward blocks

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        self.demand_divides("heads", "size")
        return self


class SequenceSizes(Width):
    vocabulary: PositiveInt = 32
    length: PositiveInt = 64  # the longest text, in tokens
    classes: PositiveInt = 10


class ImageSizes(Width):
    image: PositiveInt = 16  # height and width, in pixels
    patch: PositiveInt = 4
    classes: PositiveInt = 10

    @model_validator(mode="after")
    def _patches_fit(self) -> Self:
        self.demand_divides("patch", "image")
        return self

    @property
    def patches(self) -> int:
        """Of an image."""
        return (self.image // self.patch) ** 2


class Seen(Width):
    """How an image becomes a sequence: cut into patches, or seen by convolutions that halve it until one vector stands
    for what a patch would be (Xiao et al. 2021)."""

    patch: PositiveInt = 4
    convolutions: bool = False

    @model_validator(mode="after")
    def _halvings_fit(self) -> Self:
        if self.convolutions and (self.patch < 2 or self.patch.bit_count() > 1):
            raise ValueError(f"patch is {self.patch}, which halving an image does not lead to")
        return self


class WriterSizes(Width):
    vocabulary: PositiveInt = 32
    room: PositiveInt = 32  # tokens of the longest answer, its start included


class TranslatorSizes(WriterSizes):
    source: PositiveInt = 32  # tokens of the longest source


class CaptionerSizes(WriterSizes):
    image: PositiveInt = 32
    patch: PositiveInt = 4

    @model_validator(mode="after")
    def _patches_fit(self) -> Self:
        self.demand_divides("patch", "image")
        return self


class ActorSizes(Width):
    state: PositiveInt = 4  # numbers
    actions: PositiveInt = 2  # to choose from
    context: PositiveInt = 20  # moments to look back on
    timesteps: PositiveInt = 500  # of the longest episode


class PainterSizes(Sizes):
    """`size` is the width of the first stage. Each further one has twice the side and a quarter of the width."""

    size: PositiveInt = 256
    heads: PositiveInt = 2
    layers: PositiveInt = 1  # of each stage
    noise: PositiveInt = 32  # random numbers that an image is made of
    image: PositiveInt = 8
    start: PositiveInt = 2  # side of the first stage
    patch: PositiveInt = 2  # of what the critic looks at
    critic: PositiveInt = 64  # width of the critic

    @property
    def sides(self) -> list[int]:
        """Of the stages."""
        doublings = (self.image // self.start).bit_length() - 1
        return [self.start << stage for stage in range(doublings + 1)]

    def width(self, stage: int) -> int:
        return self.size >> 2 * stage

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        self.demand_divides("patch", "image")
        self.demand_divides("heads", "critic")
        if self.sides[-1] != self.image:
            raise ValueError(f"image is {self.image}, which doubling start {self.start} does not reach")
        shared = self.heads << 2 * (len(self.sides) - 1)
        if self.size % shared:
            raise ValueError(f"size is {self.size}, which must be a multiple of {shared}: heads of the last stage")
        return self
