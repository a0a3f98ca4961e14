from __future__ import annotations

from torch import Tensor, nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.attention import KeyValue, SelfAttention
from headwaiter_export.zoo.layers.positions import Rotary
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes


class RotaryAttention(SelfAttention):
    """Queries and keys are rotated by their positions; values are not."""

    def __init__(self, size: int, heads: int, length: int) -> None:
        super().__init__(size, heads)
        self.rotary = Rotary(length, size // heads)

    def project_queries(self, states: Tensor) -> Tensor:
        rotated: Tensor = self.rotary(super().project_queries(states))
        return rotated

    def project_keys_values(self, states: Tensor) -> KeyValue:
        key, value = super().project_keys_values(states)
        return self.rotary(key), value


@architecture(
    "roformer",
    group="other mixing, depth, positions",
    paper="Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding",
    recipe=Recipe(ListOps, target=0.9, steps=2000, tier=2),
)
class RoFormer(SequenceClassifier):
    def make_positions(self, sizes: SequenceSizes) -> None:  # noqa: ARG002
        """No embeddings are added; the attention encodes relative positions."""
        return

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return RotaryAttention(sizes.size, sizes.heads, sizes.length)
