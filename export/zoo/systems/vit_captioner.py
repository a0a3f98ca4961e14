from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from export.zoo.data.scenes import SceneCaptions
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.captioners import TransformerCaptioner
from export.zoo.kit.images import seen_by
from export.zoo.kit.placed import Objects, ObjectSizes
from export.zoo.kit.positions import OnGrid
from export.zoo.kit.slots import Counted
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import CaptionerSizes, Seen, Sizes


class VitCaptionerSizes(Seen, CaptionerSizes):
    """With `queries`, words are told of so many objects, found as DETR finds them, and not of patches: the idea of
    Anderson et al. 2018, Bottom-Up and Top-Down Attention."""

    queries: NonNegativeInt = 0
    classes: PositiveInt = 4  # of objects
    decoder_layers: PositiveInt = 2  # that look for objects

    @model_validator(mode="after")
    def _convolutions_fit(self) -> Self:
        if self.queries:
            self.objects()
        return self

    def objects(self) -> ObjectSizes:
        return ObjectSizes(**{name: getattr(self, name) for name in ObjectSizes.model_fields})


@system(
    "vit-captioner",
    group="captioning",
    paper="Liu et al. 2021, CPTR: Full Transformer Network for Image Captioning",
    recipe=Recipe(SceneCaptions, bar=0.8, steps=4000, batch=32, rate=2e-3, sizes={"patch": 8, "convolutions": True}),
)
class VitCaptioner(TransformerCaptioner):
    Sizes: ClassVar[type[Sizes]] = VitCaptionerSizes

    encoder: nn.Sequential

    def make_encoder(self, sizes: Any) -> nn.Module:
        blocks = (
            PreNorm(SelfAttention(sizes.size, sizes.heads), sizes.size, sizes.hidden) for _ in range(sizes.layers)
        )
        seen: tuple[nn.Module, nn.Module]
        if sizes.queries:
            objects = sizes.objects()
            seen = Objects(objects), Counted(objects.facts, sizes.queries, sizes.size, sizes.hidden)
        else:
            seen = seen_by(sizes, sizes.size), OnGrid(sizes.image // sizes.patch, sizes.size)
        return nn.Sequential(*seen, Stack(blocks))

    def look(self, pixels: Tensor) -> Tensor:
        """The first half of `encode`; where it does not learn, an image need be looked at only once."""
        seen: Tensor = self.encoder[0](pixels)
        return seen

    def consider(self, seen: Tensor) -> Tensor:
        """The other half."""
        states: Tensor = self.norm(self.encoder[1:](seen))
        return states
