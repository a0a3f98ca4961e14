from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import model_validator
from torch import nn

from export.zoo.data.scenes import SceneCaptions
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.captioners import TransformerCaptioner
from export.zoo.kit.images import STRIDE, seen_by
from export.zoo.kit.placed import PlacedEncoder
from export.zoo.kit.positions import OnGrid
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import CaptionerSizes, Seen, Sizes


class VitCaptionerSizes(Seen, CaptionerSizes):
    placed: bool = False  # sees as DETR does: convolutions before, and places in every layer

    @model_validator(mode="after")
    def _convolutions_fit(self) -> Self:
        if self.placed and self.patch != STRIDE:
            raise ValueError(f"patch is {self.patch}; where it is placed it is {STRIDE}")
        return self


@system(
    "vit-captioner",
    group="captioning",
    paper="Liu et al. 2021, CPTR: Full Transformer Network for Image Captioning",
    recipe=Recipe(SceneCaptions, bar=0.8, steps=4000, batch=32, rate=2e-3, sizes={"patch": 8, "convolutions": True}),
)
class VitCaptioner(TransformerCaptioner):
    Sizes: ClassVar[type[Sizes]] = VitCaptionerSizes

    def make_encoder(self, sizes: Any) -> nn.Module:
        if sizes.placed:
            return nn.Sequential(PlacedEncoder(sizes, sizes.image), OnGrid(sizes.image // STRIDE, sizes.size))
        return nn.Sequential(
            seen_by(sizes, sizes.size),
            OnGrid(sizes.image // sizes.patch, sizes.size),
            Stack(
                PreNorm(SelfAttention(sizes.size, sizes.heads), sizes.size, sizes.hidden) for _ in range(sizes.layers)
            ),
        )
