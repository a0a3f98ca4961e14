"""Systems that write: an encoder where there is a source, a decoder over a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from export import words
from export.attention import Scene
from export.decoding import Geometry, Held
from export.graph import Port
from export.runtime import Arrays
from export.zoo.families.base import OfZoo
from service.package import Decoding


class Writer(OfZoo, words.WordDecoder):
    def geometry(self) -> Geometry:
        return Geometry(self.config.layers, self.config.heads, self.config.size // self.config.heads)

    def states(self) -> dict[str, Held]:
        replaced = {
            name: Held(Port(torch.float32, ("rows", *shape)), "replace") for name, shape in self.model.held().items()
        }
        return replaced or super().states()

    def vocabulary(self) -> int:
        return int(self.config.vocabulary)

    def limits(self) -> dict[str, int]:
        return {"room": self.config.room}

    def start(self) -> tuple[int, ...]:
        return self.decoding().start

    def decoding(self) -> Decoding:
        stated = self.checkpoint.decoding
        return stated or Decoding(start=(1,), stop=(2,), max_new_tokens=self.config.room - 1)

    def cross(self, layer: int, hidden: Any) -> tuple[Tensor, Tensor]:
        pair: tuple[Tensor, Tensor] = self.model.crossings()[layer].memories(hidden)
        return pair

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:  # noqa: ARG002
        states: Tensor = self.model.decode(inputs["tokens"], positions, None, None)
        return states

    def logits(self, last: Tensor) -> Tensor:
        logits: Tensor = self.model.logits(last)
        return logits

    def original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        memory = self.encode(source) if source else None
        logits: Tensor = self.model(tokens, memory, source.get("lengths"))
        return logits


class Generator(Writer):
    def start(self) -> tuple[int, ...]:
        return ()

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        return {}


class FromSource(Writer):
    """Decoding begins with the start alone."""

    def prompts(self, rows: int, rng: np.random.Generator) -> list[list[int]]:  # noqa: ARG002
        return [list(self.start())] * rows


class Translator(FromSource, words.Translator):
    def limits(self) -> dict[str, int]:
        return {"source": self.config.source, "room": self.config.room}

    def source_vocabulary(self) -> int:
        return self.vocabulary()

    def encode(self, inputs: dict[str, Tensor]) -> Any:
        return self.model.encode(inputs["tokens"], inputs["lengths"])


class Captioner(FromSource):
    reads_images = True

    def limits(self) -> dict[str, int]:
        return {"height": self.config.image, "width": self.config.image, "room": self.config.room}

    def source_ports(self) -> dict[str, Port]:
        return {"pixels": Port(torch.float32, ("rows", 3, self.config.image, self.config.image))}

    def encode(self, inputs: dict[str, Tensor]) -> Any:
        return self.model.encode(inputs["pixels"])

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> dict[str, Any]:  # noqa: ARG002
        return {"pixels": rng.standard_normal((rows, 3, self.config.image, self.config.image)).astype(np.float32)}
