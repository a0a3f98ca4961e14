"""Recurrent layers and their ONNX operators.

Layers over whole sequences use torch's packed sequences in training, and ONNX's `GRU` and `LSTM` operators with the
length of each row while a graph is traced. Single-step cells are plain matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from headwaiter_export.tracing.attention import trace_context
from headwaiter_export.tracing.graph import OPSET

_ONNX_GATE_ORDER = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}  # indices of ONNX's gates in torch's order


class RecurrentEncoder(nn.Module):
    """Recurrent layers over the valid positions of each row. `cells` must have batch_first set and no dropout."""

    def __init__(self, cells: nn.GRU | nn.LSTM) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Encode states [rows, length, width]. Returns the outputs [rows, length, directions · size], zero at padding,
        and the final states [rows, layers · directions, size]: the hidden states and, for an LSTM, the cell states."""
        return (
            self._forward_traced(states, lengths)
            if trace_context() is not None
            else self._forward_packed(states, lengths)
        )

    def _forward_packed(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        packed = pack_padded_sequence(states, lengths.long(), batch_first=True, enforce_sorted=False)
        packed_outputs, final = self.cells(packed)
        outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=states.shape[1])
        return outputs, [part.transpose(0, 1) for part in (final if isinstance(final, tuple) else (final,))]

    def _forward_traced(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        states, final_states = states.transpose(0, 1), []
        for layer in range(self.cells.num_layers):
            outputs, *final = self._operator(layer, states, lengths)
            states = outputs.transpose(1, 2).flatten(2)
            final_states.append(final)
        return states.transpose(0, 1), [torch.cat(parts).transpose(0, 1) for parts in zip(*final_states, strict=True)]

    def _operator(self, layer: int, states: Tensor, lengths: Tensor) -> Sequence[Tensor]:
        """Apply one ONNX layer to [length, rows, width]; return outputs [length, directions, rows, size] and final
        states."""
        cells = self.cells
        directions = 2 if cells.bidirectional else 1
        names = [f"l{layer}{suffix}" for suffix in ("", "_reverse")[:directions]]
        weights = [
            torch.stack([torch.cat([self._onnx_gate_order(f"{part}_{name}") for part in parts]) for name in names])
            for parts in (("weight_ih",), ("weight_hh",), ("bias_ih", "bias_hh"))
        ]
        length, rows, _ = states.shape
        final_shape = (directions, rows, cells.hidden_size)
        num_outputs = 2 if cells.mode == "GRU" else 3
        attributes: dict[str, Any] = {
            "hidden_size": cells.hidden_size,
            "direction": "bidirectional" if cells.bidirectional else "forward",
            **({"linear_before_reset": 1} if cells.mode == "GRU" else {}),
        }
        return torch.onnx.ops.symbolic_multi_out(
            cells.mode,
            [states, *weights, lengths],
            attributes,
            dtypes=[states.dtype] * num_outputs,
            shapes=[(length, *final_shape), *[final_shape] * (num_outputs - 1)],
            version=OPSET,
        )

    def _onnx_gate_order(self, name: str) -> Tensor:
        gates = _ONNX_GATE_ORDER[self.cells.mode]
        parts = getattr(self.cells, name).chunk(len(gates))
        return torch.cat([parts[index] for index in gates])


class GruCell(nn.Module):
    """One GRU step (Cho et al. 2014), in the formulation of torch's GRU."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(width, 3 * size), nn.Linear(size, 3 * size)

    def forward(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        reset, update, candidate = self.given(inputs).chunk(3, 1)
        hidden_reset, hidden_update, hidden_candidate = self.kept(hidden).chunk(3, 1)
        update = (update + hidden_update).sigmoid()
        candidate = (candidate + (reset + hidden_reset).sigmoid() * hidden_candidate).tanh()
        return candidate + update * (hidden - candidate)


class LstmCell(nn.Module):
    """One LSTM step (Hochreiter and Schmidhuber 1997) with a forget gate."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(width, 4 * size), nn.Linear(size, 4 * size)

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        input_gate, forget_gate, candidate, output_gate = (self.given(inputs) + self.kept(hidden)).chunk(4, 1)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
        return output_gate.sigmoid() * cell.tanh(), cell


class Maxout(nn.Module):
    """Goodfellow et al. 2013: elementwise maximum of two linear projections."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.pairs = nn.Linear(width, 2 * size)

    def forward(self, states: Tensor) -> Tensor:
        first, second = self.pairs(states).chunk(2, -1)
        return torch.maximum(first, second)
