"""The one place where recurrence becomes an operator.

Layers that read a whole text are torch's own over packed sequences while learning, and ONNX's `GRU` and `LSTM`, which
are told the length of each row, while a graph is traced. Cells that take one step are plain products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from export.attention import scene
from export.graph import OPSET

_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}  # where ONNX's order finds them in torch's


class Reader(nn.Module):
    """Recurrent layers over the real places of each row. `cells` have batch_first and no dropout."""

    def __init__(self, cells: nn.GRU | nn.LSTM) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Of states [rows, length, width]: those of each place [rows, length, directions · size], zeros where nothing
        real is; and the last ones of each layer and direction [rows, layers · directions, size], of an LSTM the hidden
        ones and the cells."""
        return self._traced(states, lengths) if scene() is not None else self._packed(states, lengths)

    def _packed(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        packed = pack_padded_sequence(states, lengths.long(), batch_first=True, enforce_sorted=False)
        found, last = self.cells(packed)
        everywhere, _ = pad_packed_sequence(found, batch_first=True, total_length=states.shape[1])
        return everywhere, [part.transpose(0, 1) for part in (last if isinstance(last, tuple) else (last,))]

    def _traced(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        states, kept = states.transpose(0, 1), []
        for layer in range(self.cells.num_layers):
            everywhere, *last = self._operator(layer, states, lengths)
            states = everywhere.transpose(1, 2).flatten(2)
            kept.append(last)
        return states.transpose(0, 1), [torch.cat(parts).transpose(0, 1) for parts in zip(*kept, strict=True)]

    def _operator(self, layer: int, states: Tensor, lengths: Tensor) -> Sequence[Tensor]:
        """From [length, rows, width] to [length, directions, rows, size] and what is left at the end."""
        cells = self.cells
        directions = 2 if cells.bidirectional else 1
        names = [f"l{layer}{suffix}" for suffix in ("", "_reverse")[:directions]]
        weights = [
            torch.stack([torch.cat([self._in_order(f"{part}_{name}") for part in parts]) for name in names])
            for parts in (("weight_ih",), ("weight_hh",), ("bias_ih", "bias_hh"))
        ]
        length, rows, _ = states.shape
        last = (directions, rows, cells.hidden_size)
        outputs = 2 if cells.mode == "GRU" else 3
        attributes: dict[str, Any] = {
            "hidden_size": cells.hidden_size,
            "direction": "bidirectional" if cells.bidirectional else "forward",
            **({"linear_before_reset": 1} if cells.mode == "GRU" else {}),
        }
        return torch.onnx.ops.symbolic_multi_out(
            cells.mode,
            [states, *weights, lengths],
            attributes,
            dtypes=[states.dtype] * outputs,
            shapes=[(length, *last), *[last] * (outputs - 1)],
            version=OPSET,
        )

    def _in_order(self, name: str) -> Tensor:
        gates = _GATES[self.cells.mode]
        parts = getattr(self.cells, name).chunk(len(gates))
        return torch.cat([parts[index] for index in gates])


class GruCell(nn.Module):
    """A step of Cho et al. 2014, in the form that torch's GRU has."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(width, 3 * size), nn.Linear(size, 3 * size)

    def forward(self, given: Tensor, hidden: Tensor) -> Tensor:
        reset, update, fresh = self.given(given).chunk(3, 1)
        kept_reset, kept_update, kept_fresh = self.kept(hidden).chunk(3, 1)
        update = (update + kept_update).sigmoid()
        fresh = (fresh + (reset + kept_reset).sigmoid() * kept_fresh).tanh()
        return fresh + update * (hidden - fresh)


class LstmCell(nn.Module):
    """A step of Hochreiter and Schmidhuber 1997, with the forget gate."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(width, 4 * size), nn.Linear(size, 4 * size)

    def forward(self, given: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        let_in, forget, fresh, let_out = (self.given(given) + self.kept(hidden)).chunk(4, 1)
        cell = forget.sigmoid() * cell + let_in.sigmoid() * fresh.tanh()
        return let_out.sigmoid() * cell.tanh(), cell


class Maxout(nn.Module):
    """Goodfellow et al. 2013: the larger of two, for each number."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.pairs = nn.Linear(width, 2 * size)

    def forward(self, states: Tensor) -> Tensor:
        first, second = self.pairs(states).chunk(2, -1)
        return torch.maximum(first, second)
