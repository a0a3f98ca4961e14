"""Systems that write from states: one token a step, states swapped whole."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from export.attention import Scene
from export.graph import Port
from export.zoo.checkpoint import Checkpoint
from export.zoo.families import words
from export.zoo.kit.attention import Pair
from export.zoo.recurrent import Reading


class RecurrentWriter(words.FromSource):
    one_by_one = True

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        super().__init__(checkpoint, folder)
        self.begun_by_encoder = tuple(self.model.held())

    def cross_ports(self) -> dict[str, Port]:
        crossing = self.model.crossing()
        if crossing is None:
            return {}
        return {
            f"cross.0.{part}": Port(torch.float32, ("rows", 1, "source", size))
            for part, size in zip(("key", "value"), crossing.sizes, strict=True)
        }

    def beginnings(self, hidden: Reading, inputs: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        return hidden.states

    def cross(self, layer: int, hidden: Reading) -> Pair:  # noqa: ARG002
        pair: Pair = self.model.crossing().memories(hidden.places)
        return pair

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:  # noqa: ARG002
        seen = scene.cross[0] if scene.cross else None
        answer, scene.left = self.model.step(inputs["tokens"][:, 0], scene.held, seen, scene.source_lengths)
        states: Tensor = answer[:, None]
        return states


class RecurrentTranslator(RecurrentWriter, words.Translator):
    pass


class RecurrentCaptioner(RecurrentWriter, words.Captioner):
    pass
