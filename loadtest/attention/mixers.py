"""Token mixers that `loadtest.attention` measures, exported as graphs for one row of a fixed length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from headwaiter_export.packaging.weights import save_graphs
from headwaiter_export.passes.optimise import optimise
from headwaiter_export.tracing.attention import TraceContext, use_trace_context
from headwaiter_export.tracing.graph import GraphSpec, TensorSpec, trace
from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.mixers.fourier import FourierMixer
from headwaiter_export.zoo.layers.mixers.linformer import LinformerMixer
from headwaiter_export.zoo.layers.mixers.longformer import LongformerMixer
from headwaiter_export.zoo.layers.mixers.performer import PerformerMixer
from headwaiter_export.zoo.layers.mixers.reformer import ReformerMixer
from headwaiter_export.zoo.layers.mixers.synthesizer import DenseSynthesizer, RandomSynthesizer

SIZE, HEADS = 64, 4


@dataclass(frozen=True, slots=True)
class Mixer:
    make: Callable[[int], nn.Module]
    theory: int  # exponent of the length in the theoretical time complexity
    settings: str


MIXERS = {
    "softmax": Mixer(lambda _: SelfAttention(SIZE, HEADS), 2, "fused"),
    "linformer": Mixer(lambda length: LinformerMixer(SIZE, HEADS, length, 64), 1, "64 projected keys"),
    "performer": Mixer(lambda _: PerformerMixer(SIZE, HEADS, 64), 1, "64 features"),
    "reformer": Mixer(lambda _: ReformerMixer(SIZE, HEADS, 64, 64), 1, "64 buckets, chunks of 64"),
    "longformer": Mixer(lambda _: LongformerMixer(SIZE, HEADS, 64), 1, "64 tokens on either side"),
    "synthesizer-dense": Mixer(lambda length: DenseSynthesizer(SIZE, HEADS, length), 2, "fused"),
    "synthesizer-random": Mixer(lambda length: RandomSynthesizer(SIZE, HEADS, length), 2, "one weight per token pair"),
    "fnet": Mixer(lambda length: FourierMixer(length, SIZE), 2, "as matrix products"),
}


def write_graph(name: str, length: int, folder: Path) -> Path:
    torch.manual_seed(0)
    states = TensorSpec(torch.float32, (1, length, SIZE))
    graph = GraphSpec(name, _SingleMixer(MIXERS[name].make(length).eval()), {"states": states}, {"mixed": states})
    model = trace(graph)
    optimise(model)
    folder.mkdir(parents=True)
    save_graphs({name: model}, folder)
    return folder / f"{name}.onnx"


class _SingleMixer(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with use_trace_context(TraceContext()):
            return {"mixed": self.mixer(inputs["states"], None)}
