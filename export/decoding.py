"""Models that decode step by step: a graph `encoder` run once per source, a graph `decoder` run once per step."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.attention import Scene, cached_size, playing
from export.family import Family
from export.graph import OPSET, Graph, Port, State

PER_ROW = Port(torch.int32, ("rows",))


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a decoder that its graphs' ports depend on."""

    layers: int
    heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a decoder carries from step to step under one name."""

    port: Port
    kind: str = "append"


class Decoder(Family):
    """A family with a `decoder` graph. What a step takes and answers with is the subclass's."""

    begun_by_encoder: tuple[str, ...] = ()  # states whose first value follows from the source; others begin as zeros

    @abstractmethod
    def geometry(self) -> Geometry: ...

    @abstractmethod
    def step_ports(self) -> dict[str, Port]:
        """What goes in at each step; the first of them has the axes rows and steps."""

    @abstractmethod
    def answer_ports(self) -> dict[str, Port]: ...

    @abstractmethod
    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:
        """Hidden states [rows, steps, size] of the step's tokens, which stand at `positions` [rows, steps]."""

    @abstractmethod
    def answer(self, last: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What follows from the hidden state [rows, size] of each row's last token."""

    def source_ports(self) -> dict[str, Port]:
        """What the encoder reads; nothing where there is no encoder."""
        return {}

    def states(self) -> dict[str, Held]:
        """What is carried from step to step: keys and values of every layer, unless told otherwise."""
        sizes = self.geometry()
        cached = Held(Port(torch.float32, ("rows", sizes.heads, "room", cached_size(sizes.head_size))))
        return {f"{layer}.{part}": cached for layer in range(sizes.layers) for part in _PARTS}

    def cross_ports(self) -> dict[str, Port]:
        """What the encoder hands to every step, [rows, heads, source, size] each."""
        sizes = self.geometry()
        port = Port(torch.float32, ("rows", sizes.heads, "source", sizes.head_size))
        return {f"cross.{layer}.{part}": port for layer in range(sizes.layers) for part in _PARTS}

    def beginnings(self, hidden: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        """The first values of the states in `begun_by_encoder`."""
        return {}

    def encode(self, inputs: dict[str, Tensor]) -> Any:
        """What the source becomes, for `cross` and `beginnings`; asked for only where there is a source."""
        raise NotImplementedError

    def cross(self, layer: int, hidden: Any) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, heads, source, size] that a layer's cross-attention looks at."""
        raise NotImplementedError

    def graphs(self) -> list[Graph]:
        source, held = self.source_ports(), self.states()
        inputs = {**self.step_ports(), "lengths": PER_ROW, "positions": PER_ROW, "total": Port(torch.int32, ())}
        crossed = self.cross_ports() if source else {}
        if crossed and "lengths" in source:
            inputs["source_lengths"] = PER_ROW
        past = {f"past.{name}": each.port for name, each in held.items()}
        present = {f"present.{name}": each.port for name, each in held.items()}
        states = tuple(State(f"past.{name}", f"present.{name}", each.kind) for name, each in held.items())
        decoder = Graph("decoder", _Decoder(self), inputs | crossed | past, self.answer_ports() | present, states)
        if not source:
            return [decoder]
        begun = {f"past.{name}": held[name].port for name in self.begun_by_encoder}
        return [Graph("encoder", _Encoder(self), source, crossed | begun), decoder]


class _Encoder(nn.Module):
    """Source ▸ cross-attention keys and values of every decoder layer, and the states that follow from it."""

    def __init__(self, family: Decoder) -> None:
        super().__init__()
        self.model, self.family = family.model, family

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with playing(Scene(lengths=inputs.get("lengths"))):
            hidden = self.family.encode(inputs)
        pairs = [self.family.cross(layer, hidden) for layer in range(len(self.family.cross_ports()) // len(_PARTS))]
        crossed = {f"cross.{n}.{part}": t for n, pair in enumerate(pairs) for part, t in zip(_PARTS, pair, strict=True)}
        return crossed | {f"past.{name}": t for name, t in self.family.beginnings(hidden, inputs).items()}


class _Decoder(nn.Module):
    """The next tokens of n rows, each at its own position ▸ answers after each row's last one, and the longer past."""

    def __init__(self, family: Decoder) -> None:
        super().__init__()
        self.model, self.family = family.model, family

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        held = self.family.states()
        appended = sum(each.kind == "append" for each in held.values()) // len(_PARTS)
        crossed = sum(name.startswith("cross.") for name in inputs) // len(_PARTS)
        positions, lengths = inputs["positions"], inputs["lengths"]
        steps = inputs[next(iter(self.family.step_ports()))].shape[1]
        scene = Scene(
            source_lengths=inputs.get("source_lengths"),
            past=_pairs(inputs, "past", appended),
            cross=_pairs(inputs, "cross", crossed),
            last=positions + lengths - 1,
            total=inputs["total"],
            held={name: inputs[f"past.{name}"] for name, each in held.items() if each.kind == "replace"},
            lengths_now=lengths,
        )
        with playing(scene):
            hidden = self.family.decode(inputs, positions.long()[:, None] + torch.arange(steps)[None], scene)
        outputs = self.family.answer(_last(hidden, lengths), inputs)
        for layer in range(appended):
            outputs[f"present.{layer}.key"], outputs[f"present.{layer}.value"] = scene.present[layer]
        for name, before in scene.held.items():  # a row that has no token in this step stays as it is
            moves = (lengths > 0).view(-1, *[1] * (before.ndim - 1))
            outputs[f"present.{name}"] = torch.where(moves, scene.left[name], before)
        return outputs


def word_ports(vocabulary: int) -> dict[str, Port]:
    return {
        "logits": Port(torch.float32, ("rows", vocabulary)),
        "top_scores": Port(torch.float32, ("rows", "k")),
        "top_tokens": Port(torch.int64, ("rows", "k")),
    }


def best_words(logits: Tensor, k: Tensor) -> dict[str, Tensor]:
    """The logits, and the k likeliest tokens with their log-probabilities: decoding needs no copy of a whole row."""
    logits = logits.float()
    rows = logits.shape[0]
    _, tokens = torch.onnx.ops.symbolic_multi_out(
        "TopK",
        [logits, k],
        {"axis": -1, "largest": 1, "sorted": 1},
        dtypes=[torch.float32, torch.int64],
        shapes=[(rows, 2), (rows, 2)],  # a stand-in: k is known at run time only
        version=OPSET,
    )
    scores = torch.log_softmax(logits, -1).gather(1, tokens)  # faster than ReduceLogSumExp, which is not vectorised
    return {"logits": logits, "top_scores": scores, "top_tokens": tokens}


def heads_of(states: Tensor, head_size: int) -> Tensor:
    return states.view(states.shape[0], states.shape[1], -1, head_size).transpose(1, 2)


_PARTS = ("key", "value")


def _pairs(inputs: dict[str, Tensor], prefix: str, layers: int) -> list[tuple[Tensor, Tensor]]:
    return [(inputs[f"{prefix}.{layer}.key"], inputs[f"{prefix}.{layer}.value"]) for layer in range(layers)]


def _last(hidden: Tensor, lengths: Tensor) -> Tensor:
    index = (lengths.long() - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
    return hidden.gather(1, index).squeeze(1)
