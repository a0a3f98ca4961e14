from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from headwaiter_export.zoo.data.scenes import SceneCaptions
from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.blocks import PreNormBlock, Stack
from headwaiter_export.zoo.layers.captioners import TransformerCaptioner
from headwaiter_export.zoo.layers.image_embedding import make_image_embedding
from headwaiter_export.zoo.layers.object_queries import DetrSizes, DetrTransformer
from headwaiter_export.zoo.layers.positions import GridPositions
from headwaiter_export.zoo.layers.slots import ObjectSetEncoder
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import CaptionerSizes, ImageEmbeddingSizes, Sizes


class VitCaptionerSizes(ImageEmbeddingSizes, CaptionerSizes):
    """With `queries`, the decoder attends to that many objects detected as in DETR instead of patches, following
    Anderson et al. 2018, Bottom-Up and Top-Down Attention."""

    queries: NonNegativeInt = 0
    classes: PositiveInt = 4  # object classes
    decoder_layers: PositiveInt = 2  # of the detector

    @model_validator(mode="after")
    def _check_detector_sizes(self) -> Self:
        if self.queries:
            self.objects()
        return self

    def objects(self) -> DetrSizes:
        return DetrSizes(**{name: getattr(self, name) for name in DetrSizes.model_fields})


@architecture(
    "vit-captioner",
    group="captioning",
    paper="Liu et al. 2021, CPTR: Full Transformer Network for Image Captioning",
    recipe=Recipe(
        SceneCaptions,
        target=0.8,
        steps=4000,
        batch_size=32,
        learning_rate=2e-3,
        sizes={"patch": 8, "convolutions": True},
    ),
)
class VitCaptioner(TransformerCaptioner):
    Sizes: ClassVar[type[Sizes]] = VitCaptionerSizes

    encoder: nn.Sequential

    def make_encoder(self, sizes: Any) -> nn.Module:
        blocks = (
            PreNormBlock(SelfAttention(sizes.size, sizes.heads), sizes.size, sizes.hidden) for _ in range(sizes.layers)
        )
        embedding: tuple[nn.Module, nn.Module]
        if sizes.queries:
            objects = sizes.objects()
            embedding = (
                DetrTransformer(objects),
                ObjectSetEncoder(objects.feature_size, sizes.queries, sizes.size, sizes.hidden),
            )
        else:
            embedding = make_image_embedding(sizes, sizes.size), GridPositions(sizes.image // sizes.patch, sizes.size)
        return nn.Sequential(*embedding, Stack(blocks))

    def extract_features(self, pixels: Tensor) -> Tensor:
        """First half of `encode`; if it is frozen, its output can be computed once per image."""
        features: Tensor = self.encoder[0](pixels)
        return features

    def encode_features(self, features: Tensor) -> Tensor:
        """Second half of `encode`."""
        states: Tensor = self.norm(self.encoder[1:](features))
        return states
