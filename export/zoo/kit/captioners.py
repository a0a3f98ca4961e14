"""Captioners whose words come from a transformer decoder. Systems choose what looks at the image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from export.zoo.kit.attention import CrossAttention
from export.zoo.kit.decoders import WordDecoder
from export.zoo.kit.positions import Learned
from export.zoo.model import Captioner
from export.zoo.sizes import WriterSizes


class TransformerCaptioner(Captioner):
    def __init__(self, sizes: WriterSizes) -> None:
        super().__init__(sizes)
        self.encoder, self.norm = self.make_encoder(sizes), nn.LayerNorm(sizes.size)
        self.decoder = WordDecoder(
            sizes.vocabulary,
            Learned(sizes.room, sizes.size),
            sizes.size,
            sizes.heads,
            sizes.hidden,
            sizes.layers,
            crosses=True,
        )

    @abstractmethod
    def make_encoder(self, sizes: WriterSizes) -> nn.Module:
        """Called with pixels, it returns states [rows, places, size]."""

    def encode(self, pixels: Tensor) -> Tensor:
        states: Tensor = self.norm(self.encoder(pixels))
        return states

    def decode(self, tokens: Tensor, positions: Tensor, memory: Tensor | None, lengths: Tensor | None) -> Tensor:
        states: Tensor = self.decoder(tokens, positions, memory, lengths)
        return states

    def logits(self, states: Tensor) -> Tensor:
        return self.decoder.logits(states)

    def crossings(self) -> Sequence[CrossAttention]:
        return self.decoder.crossings
