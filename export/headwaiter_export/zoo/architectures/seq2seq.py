from __future__ import annotations

from functools import partial

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from headwaiter_export.zoo.data.reversing import Reversing
from headwaiter_export.zoo.layers.attention import KeyValue
from headwaiter_export.zoo.layers.recurrent import LstmCell
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.recurrent import EncoderOutput, RecurrentTranslator, RecurrentTranslatorSizes, States
from headwaiter_export.zoo.registry import architecture


class Seq2SeqSizes(RecurrentTranslatorSizes):
    layers: PositiveInt = 2


@architecture(
    "seq2seq",
    group="recurrent sequence models",
    paper="Sutskever et al. 2014, Sequence to Sequence Learning with Neural Networks",
    recipe=Recipe(Reversing, target=0.9, steps=1500, learning_rate=3e-3, tier=2, options={"length": 6}),
)
class Seq2Seq(RecurrentTranslator):
    """The final encoder states are the initial decoder states. The paper reverses the source so that its first tokens
    are read last; the reversing dataset needs no such reversal."""

    Sizes = Seq2SeqSizes

    def __init__(self, sizes: Seq2SeqSizes) -> None:
        super().__init__(sizes, partial(nn.LSTM, num_layers=sizes.layers))
        self.cells = nn.ModuleList(LstmCell(sizes.size, sizes.size) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.size, sizes.vocabulary)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        shape = (self.sizes.layers, self.sizes.size)
        return {"hidden": shape, "cell": shape}

    def encode(self, tokens: Tensor, lengths: Tensor) -> EncoderOutput:
        _, (hidden, cell) = self.reader(self.read(tokens), lengths)
        return EncoderOutput({"hidden": hidden, "cell": cell})

    def step(
        self,
        tokens: Tensor,
        states: States,
        keys_values: KeyValue | None,  # noqa: ARG002
        lengths: Tensor | None,  # noqa: ARG002
    ) -> tuple[Tensor, States]:
        output, new_states = self.written(tokens), []
        for layer, cell in enumerate(self.cells):
            new_states.append(cell(output, states["hidden"][:, layer], states["cell"][:, layer]))
            output = new_states[-1][0]
        hidden, cells = (torch.stack(parts, 1) for parts in zip(*new_states, strict=True))
        return output, {"hidden": hidden, "cell": cells}
