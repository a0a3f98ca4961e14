from __future__ import annotations

from functools import partial

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.data.reversing import Reversing
from export.zoo.kit.attention import Pair
from export.zoo.kit.recurrent import LstmCell
from export.zoo.recipe import Recipe
from export.zoo.recurrent import Reading, RecurrentTranslator, RecurrentTranslatorSizes, States
from export.zoo.registry import system


class Seq2SeqSizes(RecurrentTranslatorSizes):
    layers: PositiveInt = 2


@system(
    "seq2seq",
    group="before attention was all",
    paper="Sutskever et al. 2014, Sequence to Sequence Learning with Neural Networks",
    recipe=Recipe(Reversing, bar=0.9, steps=1500, rate=3e-3, tier=2, options={"length": 6}),
)
class Seq2Seq(RecurrentTranslator):
    """The states that reading ends with are those that writing begins with. The paper reads backwards, so that what is
    written first was read last; where the answer is the source reversed, reading forwards does that."""

    Sizes = Seq2SeqSizes

    def __init__(self, sizes: Seq2SeqSizes) -> None:
        super().__init__(sizes, partial(nn.LSTM, num_layers=sizes.layers))
        self.cells = nn.ModuleList(LstmCell(sizes.size, sizes.size) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.size, sizes.vocabulary)

    def held(self) -> dict[str, tuple[int, ...]]:
        shape = (self.sizes.layers, self.sizes.size)
        return {"hidden": shape, "cell": shape}

    def encode(self, tokens: Tensor, lengths: Tensor) -> Reading:
        _, (hidden, cell) = self.reader(self.read(tokens), lengths)
        return Reading({"hidden": hidden, "cell": cell})

    def step(
        self,
        words: Tensor,
        states: States,
        seen: Pair | None,  # noqa: ARG002
        lengths: Tensor | None,  # noqa: ARG002
    ) -> tuple[Tensor, States]:
        answer, left = self.written(words), []
        for layer, cell in enumerate(self.cells):
            left.append(cell(answer, states["hidden"][:, layer], states["cell"][:, layer]))
            answer = left[-1][0]
        hidden, cells = (torch.stack(parts, 1) for parts in zip(*left, strict=True))
        return answer, {"hidden": hidden, "cell": cells}
