"""Captioners with a transformer decoder. Subclasses choose the image encoder."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from headwaiter_export.zoo.layers.decoders import TransformerDecoder, TransformerDecoderModel
from headwaiter_export.zoo.layers.positions import LearnedPositions
from headwaiter_export.zoo.model import Captioner
from headwaiter_export.zoo.sizes import AutoregressiveSizes


class TransformerCaptioner(TransformerDecoderModel, Captioner):
    def __init__(self, sizes: AutoregressiveSizes) -> None:
        super().__init__(sizes)
        self.encoder, self.norm = self.make_encoder(sizes), nn.LayerNorm(sizes.size)
        self.decoder = TransformerDecoder(sizes, LearnedPositions(sizes.room, sizes.size), with_cross_attention=True)

    @abstractmethod
    def make_encoder(self, sizes: AutoregressiveSizes) -> nn.Module:
        """Return a module that maps pixels to states [rows, positions, size]."""

    def encode(self, pixels: Tensor) -> Tensor:
        states: Tensor = self.norm(self.encoder(pixels))
        return states
