"""Captioners whose words come from a transformer decoder. Systems choose what looks at the image."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from export.zoo.kit.decoders import ByDecoder, WordDecoder
from export.zoo.kit.positions import Learned
from export.zoo.model import Captioner
from export.zoo.sizes import WriterSizes


class TransformerCaptioner(ByDecoder, Captioner):
    def __init__(self, sizes: WriterSizes) -> None:
        super().__init__(sizes)
        self.encoder, self.norm = self.make_encoder(sizes), nn.LayerNorm(sizes.size)
        self.decoder = WordDecoder(sizes, Learned(sizes.room, sizes.size), crosses=True)

    @abstractmethod
    def make_encoder(self, sizes: WriterSizes) -> nn.Module:
        """Called with pixels, it returns states [rows, places, size]."""

    def encode(self, pixels: Tensor) -> Tensor:
        states: Tensor = self.norm(self.encoder(pixels))
        return states
