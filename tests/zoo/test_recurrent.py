"""Recurrent layers, additive attention and causal Performer attention, compared with torch's layers and the formulas of
the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headwaiter_export.packaging.weights import save_graphs
from headwaiter_export.tracing.attention import TraceContext, use_trace_context
from headwaiter_export.tracing.graph import GraphSpec, TensorSpec, trace
from headwaiter_export.validation.runtime import Runtime
from headwaiter_export.zoo.layers.additive_attention import AdditiveAttention
from headwaiter_export.zoo.layers.mixers.causal_performer import CausalPerformerAttention
from headwaiter_export.zoo.layers.recurrent import GruCell, LstmCell, RecurrentEncoder
from tests.marks_kit import slow_except

CELLS: dict[str, Any] = {
    "gru": lambda: nn.GRU(4, 6, batch_first=True),
    "bidirectional gru": lambda: nn.GRU(4, 6, batch_first=True, bidirectional=True),
    "two-layer lstm": lambda: nn.LSTM(4, 6, 2, batch_first=True),
}
LENGTHS = [5, 1, 3]


class TracedEncoder(nn.Module):
    def __init__(self, encoder: RecurrentEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with use_trace_context(TraceContext()):
            outputs, final = self.encoder(inputs["states"], inputs["lengths"])
        return {"outputs": outputs, **{f"final.{index}": part for index, part in enumerate(final)}}


@pytest.mark.parametrize("cells", slow_except(CELLS, "gru"))
def test_recurrent_encoder_padded_rows_match_single_rows(cells: str, tmp_path: Path) -> None:
    """In torch with packed sequences, and in the graph with the ONNX operator."""
    torch.manual_seed(0)
    encoder = RecurrentEncoder(CELLS[cells]())
    states, lengths = torch.randn(3, 5, 4), torch.tensor(LENGTHS, dtype=torch.int32)
    with torch.no_grad():
        outputs, final = encoder(states, lengths)
    floats = TensorSpec(torch.float32, ("rows", "length", 4))
    output_specs = {"outputs": floats} | {f"final.{index}": floats for index in range(len(final))}
    graph = GraphSpec(
        "model", TracedEncoder(encoder), {"states": floats, "lengths": TensorSpec(torch.int32, ("rows",))}, output_specs
    )
    model = trace(graph)
    assert [node.op_type for node in model.graph].count(encoder.cells.mode) == encoder.cells.num_layers
    for value in model.graph.outputs:
        value.shape = None
    save_graphs({"model": model}, tmp_path)
    traced = Runtime(tmp_path, ["model"]).run("model", {"states": states.numpy(), "lengths": lengths.numpy()})
    for row, length in enumerate(LENGTHS):
        with torch.no_grad():
            single_outputs, single_final = encoder.cells(states[row : row + 1, :length])
        final_parts = single_final if isinstance(single_final, tuple) else (single_final,)
        for result in (outputs.numpy(), traced["outputs"]):
            np.testing.assert_allclose(result[row, :length], single_outputs[0], atol=1e-6)
            assert not result[row, length:].any()
        for index, part in enumerate(final_parts):
            np.testing.assert_allclose(final[index][row], part[:, 0], atol=1e-6)
            np.testing.assert_allclose(traced[f"final.{index}"][row], part[:, 0], atol=1e-6)


def test_recurrent_cells_match_torch() -> None:
    inputs, hidden, memory = torch.randn(3, 4), torch.randn(3, 6), torch.randn(3, 6)
    gru, lstm = GruCell(4, 6), LstmCell(4, 6)
    reference_gru, reference_lstm = nn.GRUCell(4, 6), nn.LSTMCell(4, 6)
    for cell, reference in ((gru, reference_gru), (lstm, reference_lstm)):
        names = {
            "given.weight": "weight_ih",
            "given.bias": "bias_ih",
            "kept.weight": "weight_hh",
            "kept.bias": "bias_hh",
        }
        cell.load_state_dict({name: reference.state_dict()[reference_name] for name, reference_name in names.items()})
    torch.testing.assert_close(gru(inputs, hidden), reference_gru(inputs, hidden))
    torch.testing.assert_close(lstm(inputs, hidden, memory), reference_lstm(inputs, (hidden, memory)))


def test_additive_attention_padded_rows_match_formula() -> None:
    torch.manual_seed(0)
    attention = AdditiveAttention(4, 6, 5)
    state, memory = torch.randn(2, 4), torch.randn(2, 3, 6)
    lengths = torch.tensor([3, 2])
    with torch.no_grad():
        attended = attention(state, attention.project_keys_values(memory), lengths)
        for row, length in enumerate(lengths.tolist()):
            query = attention.query.weight @ state[row]
            keys = [attention.key.weight @ vector + attention.key.bias for vector in memory[row, :length]]
            energies = torch.stack([attention.score.weight[0] @ torch.tanh(query + key) for key in keys])
            weights = energies.exp() / energies.exp().sum()
            expected = sum(weight * vector for weight, vector in zip(weights, memory[row, :length], strict=True))
            torch.testing.assert_close(attended[row], expected)


def test_random_features_approximate_softmax() -> None:
    torch.manual_seed(0)
    query, key = 0.5 * torch.randn(2, 1, 1, 6, 16)
    softmax = (query @ key.transpose(2, 3) / 4).softmax(-1)

    def error(features: int) -> float:
        mixer = CausalPerformerAttention(16, 1, features, 0)
        products = mixer.features(query) @ mixer.features(key).transpose(2, 3)
        return float((products / products.sum(-1, keepdim=True) - softmax).abs().max())

    assert error(4096) < 0.02 < 0.08 < float((softmax - 1 / 6).abs().max())  # uniform weights have an error above 0.08
    assert error(4096) < error(16) / 2


def test_causal_performer_states_in_parts_match_whole() -> None:
    """The second row is one token shorter in each part."""
    torch.manual_seed(0)
    mixer = CausalPerformerAttention(8, 2, 6, 0)
    states, lengths = torch.randn(2, 5, 8), (torch.tensor([3, 2]), torch.tensor([2, 1]))
    states_in = {"0.sums": torch.zeros(2, 2, 6, 4), "0.masses": torch.zeros(2, 2, 6)}
    with torch.no_grad():
        whole, shorter = mixer(states), mixer(states[1:, [0, 1, 3]])
        with use_trace_context(TraceContext(states_in=states_in, step_lengths=lengths[0])) as first:
            mixer(states[:, :3])
        with use_trace_context(TraceContext(states_in=first.states_out, step_lengths=lengths[1])):
            later = mixer(states[:, 3:])
    torch.testing.assert_close(later[0], whole[0, 3:])
    torch.testing.assert_close(later[1, 0], shorter[0, 2])
