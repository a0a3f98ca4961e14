"""The mixers that `loadtest.attention` measures, as graphs for one row of one length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from export.attention import Scene, playing
from export.graph import Graph, Port, trace
from export.optimise import optimise
from export.weights import save_graphs
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.mixers.fourier import FourierMixer
from export.zoo.kit.mixers.linformer import LinformerMixer
from export.zoo.kit.mixers.longformer import LongformerMixer
from export.zoo.kit.mixers.performer import PerformerMixer
from export.zoo.kit.mixers.reformer import ReformerMixer
from export.zoo.kit.mixers.synthesizer import DenseSynthesizer, RandomSynthesizer

SIZE, HEADS = 64, 4


@dataclass(frozen=True, slots=True)
class Mixer:
    make: Callable[[int], nn.Module]
    theory: int  # the power of the length that its time grows with
    settings: str


MIXERS = {
    "softmax": Mixer(lambda _: SelfAttention(SIZE, HEADS), 2, "fused"),
    "linformer": Mixer(lambda length: LinformerMixer(SIZE, HEADS, length, 64), 1, "64 keys kept"),
    "performer": Mixer(lambda _: PerformerMixer(SIZE, HEADS, 64), 1, "64 features"),
    "reformer": Mixer(lambda _: ReformerMixer(SIZE, HEADS, 64, 64), 1, "64 buckets, chunks of 64"),
    "longformer": Mixer(lambda _: LongformerMixer(SIZE, HEADS, 64), 1, "64 tokens on either side"),
    "synthesizer-dense": Mixer(lambda length: DenseSynthesizer(SIZE, HEADS, length), 2, "fused"),
    "synthesizer-random": Mixer(lambda length: RandomSynthesizer(SIZE, HEADS, length), 2, "a weight per pair"),
    "fnet": Mixer(lambda length: FourierMixer(length, SIZE), 2, "by products"),
}


def write_graph(name: str, length: int, folder: Path) -> Path:
    torch.manual_seed(0)
    states = Port(torch.float32, (1, length, SIZE))
    graph = Graph(name, _Alone(MIXERS[name].make(length).eval()), {"states": states}, {"mixed": states})
    model = trace(graph)
    optimise(model)
    folder.mkdir(parents=True)
    save_graphs({name: model}, folder)
    return folder / f"{name}.onnx"


class _Alone(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with playing(Scene()):
            return {"mixed": self.mixer(inputs["states"], None)}
