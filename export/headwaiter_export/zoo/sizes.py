"""Model sizes, validated before a model is built."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from headwaiter_export.errors import SourceError


class Sizes(BaseModel):
    """Base class. Subclasses add fields with defaults and check which sizes must divide which. The field names are keys
    of config.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls, values: dict[str, Any], origin: str) -> Self:
        """Validate `values`; raise a one-sentence `SourceError` that names `origin` if they are invalid."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                raise SourceError(
                    f"{origin} has no size {name!r}; available: {', '.join(cls.model_fields)}."
                ) from error
            reason = first["msg"].removeprefix("Value error, ")
            raise SourceError(f"{origin}: {f'{name}: ' if name else ''}{reason}.") from error

    def require_divides(self, divisor: str, dividend: str) -> None:
        if getattr(self, dividend) % getattr(self, divisor):
            value, factor = getattr(self, dividend), getattr(self, divisor)
            raise ValueError(f"{dividend} is {value}; it must be a multiple of {divisor} ({factor})")


class TransformerSizes(Sizes):
    """Sizes common to most architectures: `layers` blocks over vectors of `size` numbers, split into `heads`."""

    size: PositiveInt = 64
    heads: PositiveInt = 4
    layers: PositiveInt = 2
    hidden: PositiveInt = 128  # width of the feed-forward blocks

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        self.require_divides("heads", "size")
        return self


class SequenceSizes(TransformerSizes):
    vocabulary: PositiveInt = 32
    length: PositiveInt = 64  # maximum text length in tokens
    classes: PositiveInt = 10


class ImageSizes(TransformerSizes):
    image: PositiveInt = 16  # height and width in pixels
    patch: PositiveInt = 4
    classes: PositiveInt = 10

    @model_validator(mode="after")
    def _check_patches(self) -> Self:
        self.require_divides("patch", "image")
        return self

    @property
    def patches(self) -> int:
        """Number of patches per image."""
        return (self.image // self.patch) ** 2


class ImageEmbeddingSizes(Sizes):
    """How an image becomes a sequence: one linear projection per patch or, with `convolutions`, a stack of stride-2
    convolutions that ends with one vector per patch (Xiao et al. 2021)."""

    patch: PositiveInt = 4
    convolutions: bool = False

    @model_validator(mode="after")
    def _check_patch_is_power_of_two(self) -> Self:
        if self.convolutions and (self.patch < 2 or self.patch.bit_count() > 1):
            raise ValueError(f"patch is {self.patch}; with convolutions it must be a power of two and at least 2")
        return self


class AutoregressiveSizes(TransformerSizes):
    vocabulary: PositiveInt = 32
    room: PositiveInt = 32  # tokens of the longest output, including the start token


class TranslatorSizes(AutoregressiveSizes):
    source: PositiveInt = 32  # tokens of the longest source


class CaptionerSizes(AutoregressiveSizes):
    image: PositiveInt = 32
    patch: PositiveInt = 4

    @model_validator(mode="after")
    def _check_patches(self) -> Self:
        self.require_divides("patch", "image")
        return self


class ActorSizes(TransformerSizes):
    state: PositiveInt = 4  # numbers in a state
    actions: PositiveInt = 2  # number of discrete actions
    context: PositiveInt = 20  # steps of history
    timesteps: PositiveInt = 500  # steps of the longest episode


class ImageGeneratorSizes(Sizes):
    """`size` is the width of the first stage. Each further stage doubles the side and quarters the width."""

    size: PositiveInt = 256
    heads: PositiveInt = 2
    layers: PositiveInt = 1  # per stage
    noise: PositiveInt = 32  # dimension of the noise vector
    image: PositiveInt = 8
    start: PositiveInt = 2  # side of the first stage
    patch: PositiveInt = 2  # patch size of the discriminator
    critic: PositiveInt = 64  # width of the discriminator

    @property
    def sides(self) -> list[int]:
        """Side lengths of the stages."""
        doublings = (self.image // self.start).bit_length() - 1
        return [self.start << stage for stage in range(doublings + 1)]

    def width(self, stage: int) -> int:
        return self.size >> 2 * stage

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        self.require_divides("patch", "image")
        self.require_divides("heads", "critic")
        if self.sides[-1] != self.image:
            raise ValueError(f"image is {self.image}; it must be start ({self.start}) times a power of two")
        divisor = self.heads << 2 * (len(self.sides) - 1)
        if self.size % divisor:
            raise ValueError(
                f"size is {self.size}; it must be a multiple of {divisor} to fill the heads of the last stage"
            )
        return self
