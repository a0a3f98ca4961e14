"""Recurrence, attention from before products, and sums that run: beside torch's own layers and the papers' formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.attention import Scene, playing
from export.graph import Graph, Port, trace
from export.runtime import Runtime
from export.weights import save_graphs
from export.zoo.kit.additive import AdditiveAttention
from export.zoo.kit.mixers.running import RunningAttention
from export.zoo.kit.recurrent import GruCell, LstmCell, Reader

SYSTEMS = ("bahdanau", "performer-lm", "rnn-context", "seq2seq", "show-attend-tell")
CELLS: dict[str, Any] = {
    "gru": lambda: nn.GRU(4, 6, batch_first=True),
    "gru both ways": lambda: nn.GRU(4, 6, batch_first=True, bidirectional=True),
    "lstm of two layers": lambda: nn.LSTM(4, 6, 2, batch_first=True),
}
LENGTHS = [5, 1, 3]


class Reads(nn.Module):
    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with playing(Scene()):
            everywhere, last = self.reader(inputs["states"], inputs["lengths"])
        return {"everywhere": everywhere, **{f"last.{index}": part for index, part in enumerate(last)}}


@pytest.mark.parametrize("cells", CELLS)
def test_rows_of_different_lengths_are_read_as_each_alone(cells: str, tmp_path: Path) -> None:
    """By packed sequences in torch, and by ONNX's operator in the graph."""
    torch.manual_seed(0)
    reader = Reader(CELLS[cells]())
    states, lengths = torch.randn(3, 5, 4), torch.tensor(LENGTHS, dtype=torch.int32)
    with torch.no_grad():
        everywhere, last = reader(states, lengths)
    floats = Port(torch.float32, ("rows", "length", 4))
    ports = {"everywhere": floats} | {f"last.{index}": floats for index in range(len(last))}
    graph = Graph("model", Reads(reader), {"states": floats, "lengths": Port(torch.int32, ("rows",))}, ports)
    model = trace(graph)
    assert [node.op_type for node in model.graph].count(reader.cells.mode) == reader.cells.num_layers
    for value in model.graph.outputs:
        value.shape = None
    save_graphs({"model": model}, tmp_path)
    traced = Runtime(tmp_path, ["model"]).run("model", {"states": states.numpy(), "lengths": lengths.numpy()})
    for row, length in enumerate(LENGTHS):
        with torch.no_grad():
            alone, left = reader.cells(states[row : row + 1, :length])
        kept = left if isinstance(left, tuple) else (left,)
        for found in (everywhere.numpy(), traced["everywhere"]):
            np.testing.assert_allclose(found[row, :length], alone[0], atol=1e-6)
            assert not found[row, length:].any()
        for index, part in enumerate(kept):
            np.testing.assert_allclose(last[index][row], part[:, 0], atol=1e-6)
            np.testing.assert_allclose(traced[f"last.{index}"][row], part[:, 0], atol=1e-6)


def test_cells_are_those_of_torch() -> None:
    given, hidden, memory = torch.randn(3, 4), torch.randn(3, 6), torch.randn(3, 6)
    gru, lstm = GruCell(4, 6), LstmCell(4, 6)
    their_gru, their_lstm = nn.GRUCell(4, 6), nn.LSTMCell(4, 6)
    for ours, theirs in ((gru, their_gru), (lstm, their_lstm)):
        names = {
            "given.weight": "weight_ih",
            "given.bias": "bias_ih",
            "kept.weight": "weight_hh",
            "kept.bias": "bias_hh",
        }
        ours.load_state_dict({name: theirs.state_dict()[other] for name, other in names.items()})
    torch.testing.assert_close(gru(given, hidden), their_gru(given, hidden))
    torch.testing.assert_close(lstm(given, hidden, memory), their_lstm(given, (hidden, memory)))


def test_additive_attention_weighs_real_places_by_the_formula() -> None:
    torch.manual_seed(0)
    attention = AdditiveAttention(4, 6, 5)
    state, places = torch.randn(2, 4), torch.randn(2, 3, 6)
    lengths = torch.tensor([3, 2])
    with torch.no_grad():
        found = attention(state, attention.memories(places), lengths)
        for row, length in enumerate(lengths.tolist()):
            asked = attention.query.weight @ state[row]
            told = [attention.key.weight @ place + attention.key.bias for place in places[row, :length]]
            energies = torch.stack([attention.score.weight[0] @ torch.tanh(asked + each) for each in told])
            shares = energies.exp() / energies.exp().sum()
            expected = sum(share * place for share, place in zip(shares, places[row, :length], strict=True))
            torch.testing.assert_close(found[row], expected)


def test_random_features_come_near_to_softmax() -> None:
    torch.manual_seed(0)
    query, key = 0.5 * torch.randn(2, 1, 1, 6, 16)
    softmax = (query @ key.transpose(2, 3) / 4).softmax(-1)

    def error(features: int) -> float:
        mixer = RunningAttention(16, 1, features, 0)
        products = mixer.features(query) @ mixer.features(key).transpose(2, 3)
        return float((products / products.sum(-1, keepdim=True) - softmax).abs().max())

    assert error(4096) < 0.02 < 0.08 < float((softmax - 1 / 6).abs().max())  # equal weights would be far off
    assert error(4096) < error(16) / 2


def test_running_sums_are_all_that_is_needed_of_the_past() -> None:
    """A text read in parts, one row of them shorter, beside the whole."""
    torch.manual_seed(0)
    mixer = RunningAttention(8, 2, 6, 0)
    states, lengths = torch.randn(2, 5, 8), (torch.tensor([3, 2]), torch.tensor([2, 1]))
    held = {"0.sums": torch.zeros(2, 2, 6, 4), "0.masses": torch.zeros(2, 2, 6)}
    with torch.no_grad():
        whole, shorter = mixer(states), mixer(states[1:, [0, 1, 3]])
        with playing(Scene(held=held, lengths_now=lengths[0])) as first:
            mixer(states[:, :3])
        with playing(Scene(held=first.left, lengths_now=lengths[1])):
            later = mixer(states[:, 3:])
    torch.testing.assert_close(later[0], whole[0, 3:])
    torch.testing.assert_close(later[1, 0], shorter[0, 2])
