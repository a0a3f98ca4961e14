"""Families that decode step by step: an `encoder` graph runs once per source, a `decoder` graph once per step."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwaiter_export.families.family import Family
from headwaiter_export.tracing.attention import TraceContext, cache_head_size, use_trace_context
from headwaiter_export.tracing.graph import OPSET, GraphSpec, StateBinding, TensorSpec

PER_ROW = TensorSpec(torch.int32, ("rows",))


@dataclass(frozen=True, slots=True)
class DecoderDimensions:
    """The sizes that determine the shapes of the key and value caches."""

    layers: int
    heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A tensor that the decoder carries from step to step."""

    tensor: TensorSpec
    kind: str = "append"


class DecoderFamily(Family):
    """A family with a `decoder` graph. Subclasses define the inputs and outputs of a step."""

    encoder_initialised_states: tuple[str, ...] = ()  # computed by the encoder; other states start as zeros

    @abstractmethod
    def dimensions(self) -> DecoderDimensions: ...

    @abstractmethod
    def step_inputs(self) -> dict[str, TensorSpec]:
        """Return the inputs of a step. The first of them has the axes `rows` and `steps`."""

    @abstractmethod
    def step_outputs(self) -> dict[str, TensorSpec]: ...

    @abstractmethod
    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:
        """Return hidden states [rows, steps, size] of the tokens of a step, which are at `positions` [rows, steps]."""

    @abstractmethod
    def output(self, last: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the outputs of a step from the hidden states [rows, size] of the last token of each row."""

    def encoder_inputs(self) -> dict[str, TensorSpec]:
        """Return the inputs of the encoder graph; empty if there is no encoder."""
        return {}

    def states(self) -> dict[str, StateSpec]:
        """Return the states by name; the default is the key and value caches of every layer."""
        sizes = self.dimensions()
        cached = StateSpec(
            TensorSpec(torch.float32, ("rows", sizes.heads, "max_length", cache_head_size(sizes.head_size)))
        )
        return {f"{layer}.{part}": cached for layer in range(sizes.layers) for part in _KEY_VALUE}

    def cross_attention_inputs(self) -> dict[str, TensorSpec]:
        """Return the decoder inputs that the encoder computes, each [rows, heads, source, size]."""
        sizes = self.dimensions()
        spec = TensorSpec(torch.float32, ("rows", sizes.heads, "source", sizes.head_size))
        return {f"cross.{layer}.{part}": spec for layer in range(sizes.layers) for part in _KEY_VALUE}

    def initial_states(self, hidden: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the values of the states in `encoder_initialised_states` before the first step."""
        return {}

    def encode(self, inputs: dict[str, Tensor]) -> Any:
        """Encode the source for `cross` and `initial_states`. Called only if there is an encoder."""
        raise NotImplementedError

    def cross(self, layer: int, hidden: Any) -> tuple[Tensor, Tensor]:
        """Return the cross-attention keys and values [rows, heads, source, size] of a layer."""
        raise NotImplementedError

    def graphs(self) -> list[GraphSpec]:
        source, specs = self.encoder_inputs(), self.states()
        inputs = {**self.step_inputs(), "lengths": PER_ROW, "positions": PER_ROW, "total": TensorSpec(torch.int32, ())}
        cross = self.cross_attention_inputs() if source else {}
        if cross and "lengths" in source:
            inputs["source_lengths"] = PER_ROW
        past = {f"past.{name}": spec.tensor for name, spec in specs.items()}
        outputs = self.step_outputs() | {f"present.{name}": spec.tensor for name, spec in specs.items()}
        states = tuple(StateBinding(f"past.{name}", f"present.{name}", spec.kind) for name, spec in specs.items())
        decoder = GraphSpec("decoder", _DecoderModule(self), inputs | cross | past, outputs, states)
        if not source:
            return [decoder]
        initial = {f"past.{name}": specs[name].tensor for name in self.encoder_initialised_states}
        return [GraphSpec("encoder", _EncoderModule(self), source, cross | initial), decoder]


class _EncoderModule(nn.Module):
    """Maps the source to the cross-attention keys and values of every decoder layer and to the initial states."""

    def __init__(self, family: DecoderFamily) -> None:
        super().__init__()
        self.model, self.family = family.model, family

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with use_trace_context(TraceContext(lengths=inputs.get("lengths"))):
            hidden = self.family.encode(inputs)
        pairs = [
            self.family.cross(layer, hidden)
            for layer in range(len(self.family.cross_attention_inputs()) // len(_KEY_VALUE))
        ]
        cross = {
            f"cross.{n}.{part}": t for n, pair in enumerate(pairs) for part, t in zip(_KEY_VALUE, pair, strict=True)
        }
        return cross | {f"past.{name}": t for name, t in self.family.initial_states(hidden, inputs).items()}


class _DecoderModule(nn.Module):
    """Maps the next tokens of all rows, each at its own position, to the step outputs and the updated states."""

    def __init__(self, family: DecoderFamily) -> None:
        super().__init__()
        self.model, self.family = family.model, family

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        specs = self.family.states()
        cached_layers = sum(spec.kind == "append" for spec in specs.values()) // len(_KEY_VALUE)
        cross_layers = sum(name.startswith("cross.") for name in inputs) // len(_KEY_VALUE)
        positions, lengths = inputs["positions"], inputs["lengths"]
        steps = inputs[next(iter(self.family.step_inputs()))].shape[1]
        trace_context = TraceContext(
            source_lengths=inputs.get("source_lengths"),
            past=_key_value_pairs(inputs, "past", cached_layers),
            cross=_key_value_pairs(inputs, "cross", cross_layers),
            last=positions + lengths - 1,
            total=inputs["total"],
            states_in={name: inputs[f"past.{name}"] for name, spec in specs.items() if spec.kind == "replace"},
            step_lengths=lengths,
        )
        with use_trace_context(trace_context):
            hidden = self.family.decode(inputs, positions.long()[:, None] + torch.arange(steps)[None], trace_context)
        outputs = self.family.output(_select_last(hidden, lengths), inputs)
        for layer in range(cached_layers):
            outputs[f"present.{layer}.key"], outputs[f"present.{layer}.value"] = trace_context.present[layer]
        for name, before in trace_context.states_in.items():  # rows without a token in this step keep their state
            has_token = (lengths > 0).view(-1, *[1] * (before.ndim - 1))
            outputs[f"present.{name}"] = torch.where(has_token, trace_context.states_out[name], before)
        return outputs


def token_output_specs(vocabulary: int) -> dict[str, TensorSpec]:
    return {
        "logits": TensorSpec(torch.float32, ("rows", vocabulary)),
        "top_scores": TensorSpec(torch.float32, ("rows", "k")),
        "top_tokens": TensorSpec(torch.int64, ("rows", "k")),
    }


def token_outputs(logits: Tensor, k: Tensor) -> dict[str, Tensor]:
    """Return the logits and the k most likely tokens with their log-probabilities.

    With the top tokens, decoding does not have to read the logits of a whole row.
    """
    logits = logits.float()
    rows = logits.shape[0]
    _, tokens = torch.onnx.ops.symbolic_multi_out(
        "TopK",
        [logits, k],
        {"axis": -1, "largest": 1, "sorted": 1},
        dtypes=[torch.float32, torch.int64],
        shapes=[(rows, 2), (rows, 2)],  # placeholder: k is known only at run time
        version=OPSET,
    )
    scores = torch.log_softmax(logits, -1).gather(1, tokens)  # faster than ReduceLogSumExp, which is not vectorised
    return {"logits": logits, "top_scores": scores, "top_tokens": tokens}


def split_heads(states: Tensor, head_size: int) -> Tensor:
    return states.view(states.shape[0], states.shape[1], -1, head_size).transpose(1, 2)


_KEY_VALUE = ("key", "value")


def _key_value_pairs(inputs: dict[str, Tensor], prefix: str, layers: int) -> list[tuple[Tensor, Tensor]]:
    return [(inputs[f"{prefix}.{layer}.key"], inputs[f"{prefix}.{layer}.value"]) for layer in range(layers)]


def _select_last(hidden: Tensor, lengths: Tensor) -> Tensor:
    index = (lengths.long() - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
    return hidden.gather(1, index).squeeze(1)
