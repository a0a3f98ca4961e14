from __future__ import annotations

from torch import Tensor, nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.attention import Pair, SelfAttention
from export.zoo.kit.positions import Rotary
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes


class RotaryAttention(SelfAttention):
    """Queries and keys are turned by their positions; values are not."""

    def __init__(self, size: int, heads: int, length: int) -> None:
        super().__init__(size, heads)
        self.rotary = Rotary(length, size // heads)

    def questions(self, states: Tensor) -> Tensor:
        turned: Tensor = self.rotary(super().questions(states))
        return turned

    def memories(self, states: Tensor) -> Pair:
        key, value = super().memories(states)
        return self.rotary(key), value


@system(
    "roformer",
    group="other mixing, depth, positions",
    paper="Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding",
    recipe=Recipe(ListOps, bar=0.9, steps=2000, tier=2),
)
class RoFormer(SequenceClassifier):
    def make_positions(self, sizes: SequenceSizes) -> None:  # noqa: ARG002
        """Nothing is added to words: attention itself knows how far apart they stand."""
        return

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return RotaryAttention(sizes.size, sizes.heads, sizes.length)
