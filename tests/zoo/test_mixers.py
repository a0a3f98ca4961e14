"""Token mixers of efficient attention, compared with the formulas of their papers or with transformers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.blocks import ReversibleBlock
from headwaiter_export.zoo.layers.mixers.fourier import FourierMixer
from headwaiter_export.zoo.layers.mixers.linformer import LinformerMixer
from headwaiter_export.zoo.layers.mixers.longformer import LongformerMixer
from headwaiter_export.zoo.layers.mixers.performer import PerformerMixer, linear_attention, orthogonal_directions
from headwaiter_export.zoo.layers.mixers.reformer import ReformerMixer
from headwaiter_export.zoo.layers.mixers.synthesizer import DenseSynthesizer, RandomSynthesizer
from headwaiter_export.zoo.registry import find_architecture

SIZE, HEADS, LENGTH = 16, 2, 40
MIXERS: dict[str, Callable[[int], nn.Module]] = {
    "linformer": lambda length: LinformerMixer(SIZE, HEADS, length, 8),
    "performer": lambda _: PerformerMixer(SIZE, HEADS, 32),
    "reformer": lambda _: ReformerMixer(SIZE, HEADS, 8, 16, rounds=2),
    "longformer": lambda _: LongformerMixer(SIZE, HEADS, 16),
    "synthesizer-dense": lambda length: DenseSynthesizer(SIZE, HEADS, length),
    "synthesizer-random": lambda length: RandomSynthesizer(SIZE, HEADS, length),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


def attended_positions(mixer: nn.Module, states: Tensor, position: int) -> set[int]:
    """Positions whose states have a gradient of the output at `position`."""
    states = states.clone().requires_grad_()
    output = mixer(states, torch.tensor([states.shape[1]]))
    (gradient,) = torch.autograd.grad(output[0, position].square().sum(), states)
    return set(gradient[0].abs().sum(1).nonzero().flatten().tolist())


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_mixer_padding_has_no_effect(name: str) -> None:
    mixer, states = MIXERS[name](LENGTH), torch.randn(2, LENGTH, SIZE)
    together = mixer(states, torch.tensor([LENGTH, 21]))
    torch.testing.assert_close(mixer(states[1:, :21], torch.tensor([21]))[0], together[1, :21])
    torch.testing.assert_close(mixer(states[:1], None)[0], together[0])


@pytest.mark.parametrize("name", ["linformer", "performer", "reformer", "longformer"])
@torch.no_grad()
def test_mixer_long_sequence_finite(name: str) -> None:
    output = MIXERS[name](5000)(torch.randn(1, 5000, SIZE), torch.tensor([4999]))
    assert output.shape == (1, 5000, SIZE)
    assert output.isfinite().all()


@torch.no_grad()
def test_fourier_mixer_matches_fft2() -> None:
    states = torch.randn(2, 12, SIZE)
    expected = torch.fft.fft2(states, norm="ortho").real
    torch.testing.assert_close(FourierMixer(12, SIZE)(states), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_linformer_full_length_equals_softmax_attention() -> None:
    full, mixer = SelfAttention(SIZE, HEADS), LinformerMixer(SIZE, HEADS, LENGTH, LENGTH)
    mixer.load_state_dict(full.state_dict() | {"key_sums": torch.eye(LENGTH), "value_sums": torch.eye(LENGTH)})
    states = torch.randn(2, LENGTH, SIZE)
    torch.testing.assert_close(mixer(states), full(states))


@torch.no_grad()
def test_performer_more_features_smaller_error() -> None:
    value, query, key = torch.randn(3, 1, 4, LENGTH, 8)
    query, key = 0.3 * query, 0.3 * key  # the variance grows exponentially with their norms
    expected = scaled_dot_product_attention(query, key, value)
    errors = [
        (linear_attention(query, key, value, orthogonal_directions(count, 8)) - expected).square().mean().sqrt()
        for count in (16, 256, 4096)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.05 * expected.std()


def test_orthogonal_directions_are_orthogonal_and_unbiased() -> None:
    directions = orthogonal_directions(8 * 500 + 4, 8)
    assert directions.mean(1).abs().max() < 0.06
    torch.testing.assert_close(directions.square().mean(1), torch.ones(8), atol=0.1, rtol=0)
    for block in directions.split(8, 1):
        products = block.T @ block
        torch.testing.assert_close(products, products.diag().diag(), atol=1e-5, rtol=0)


def test_longformer_attends_to_window_and_first_token() -> None:
    mixer, states = LongformerMixer(SIZE, HEADS, 4), torch.randn(1, LENGTH, SIZE)
    assert attended_positions(mixer, states, 0) == set(range(LENGTH))
    assert attended_positions(mixer, states, 2) == set(range(7))
    assert attended_positions(mixer, states, 23) == {0, *range(19, 28)}
    assert attended_positions(mixer, states, LENGTH - 1) == {0, *range(LENGTH - 5, LENGTH)}


@torch.no_grad()
def test_longformer_matches_transformers() -> None:
    config = LongformerConfig(hidden_size=SIZE, num_attention_heads=HEADS, attention_window=[8])
    reference = LongformerSelfAttention(config, layer_id=0).eval()
    mixer = LongformerMixer(SIZE, HEADS, window=4)
    mixer.out = nn.Linear(SIZE, SIZE, bias=False)
    mixer.out.weight.copy_(torch.eye(SIZE))  # transformers applies the output projection in another module
    weights = reference.state_dict()
    reference_names = {"query": "query", "key": "key", "value": "value"}
    reference_names |= {f"global_{name}": f"{name}_global" for name in ("query", "key", "value")}
    for name, original in reference_names.items():
        mixer.get_submodule(name).load_state_dict({part: weights[f"{original}.{part}"] for part in ("weight", "bias")})
    states, lengths = torch.randn(2, LENGTH, SIZE), torch.tensor([LENGTH, 27])
    padding = torch.arange(LENGTH)[None] >= lengths[:, None]
    first = torch.zeros(2, LENGTH, dtype=torch.bool)
    first[:, 0] = True
    (expected,) = reference(
        states,
        attention_mask=padding.float() * -10_000 + first.float() * 10_000,
        is_index_masked=padding,
        is_index_global_attn=first,
        is_global_attn=True,
    )[:1]
    output = mixer(states, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(output[row, :length], expected[row, :length], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_reformer_matches_formula() -> None:
    mixer, states, length = ReformerMixer(SIZE, HEADS, 4, chunk=8, rounds=3), torch.randn(1, LENGTH, SIZE), 37
    query, value = (part(states[0, :length]).unflatten(1, (HEADS, -1)) for part in (mixer.query, mixer.value))
    expected = torch.zeros(length, HEADS, SIZE // HEADS)
    for round_and_head, rotation in enumerate(mixer.rotations):
        head = round_and_head % HEADS
        rotated = query[:, head] @ rotation
        buckets = torch.cat([rotated, -rotated], 1).argmax(1).tolist()
        order = sorted(range(length), key=lambda token: (buckets[token], token))
        for rank, token in enumerate(order):
            start = (rank // 8) * 8
            visible = [other for other in order[max(0, start - 8) : start + 8] if other != token]
            keys = torch.stack([query[other, head] / query[other, head].norm() for other in visible])
            expected[token, head] += (keys @ query[token, head]).softmax(0) @ value[visible, head] / 3
    output = mixer(states, torch.tensor([length]))[0, :length]
    torch.testing.assert_close(output, mixer.out(expected.flatten(1)), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_reformer_single_token_attends_to_itself() -> None:
    mixer, states = ReformerMixer(SIZE, HEADS, 4, 8), torch.randn(1, 1, SIZE)
    torch.testing.assert_close(mixer(states, torch.tensor([1])), mixer.out(mixer.value(states)))


@torch.no_grad()
def test_reformer_hashes_similar_vectors_share_buckets() -> None:
    mixer, vectors = ReformerMixer(SIZE, HEADS, 8, 8), torch.randn(1, HEADS, 500, SIZE // HEADS)
    hashes = mixer.hashes(vectors)
    similar_share = (mixer.hashes(vectors + 0.05 * torch.randn_like(vectors)) == hashes).float().mean()
    random_share = (mixer.hashes(torch.randn_like(vectors)) == hashes).float().mean()
    assert similar_share > 0.9
    assert random_share < 0.2
    assert mixer.hashes(7 * vectors).equal(hashes)


@torch.no_grad()
def test_reversible_block_inverse_restores_input() -> None:
    block = ReversibleBlock(ReformerMixer(SIZE, HEADS, 4, 8), SIZE, 32).double()
    states, lengths = torch.randn(2, LENGTH, 2 * SIZE, dtype=torch.float64), torch.tensor([LENGTH, 30])
    after = block(states, lengths)
    assert not torch.allclose(after, states, atol=0.1)
    torch.testing.assert_close(block.inverse(after, lengths), states)


@torch.no_grad()
def test_dense_synthesizer_matches_linear_layers() -> None:
    mixer, states = DenseSynthesizer(SIZE, HEADS, LENGTH), torch.randn(1, LENGTH, SIZE)
    queries = mixer.wish(states[0]).relu()
    attended = []
    for query, position_vectors, value in zip(
        *(part.chunk(HEADS, 1) for part in (queries, mixer.places, mixer.value(states[0]))), strict=True
    ):
        layer = nn.Linear(SIZE // HEADS, LENGTH, bias=False)
        layer.weight.copy_(position_vectors)
        attended.append(layer(query).softmax(1) @ value)
    torch.testing.assert_close(mixer(states)[0], mixer.out(torch.cat(attended, 1)))


@torch.no_grad()
def test_random_synthesizer_is_linear_in_values() -> None:
    """The weights depend on positions alone."""
    mixer, (first, second) = RandomSynthesizer(SIZE, HEADS, LENGTH), torch.randn(2, 1, LENGTH, SIZE)
    torch.testing.assert_close(mixer((first + second) / 2), (mixer(first) + mixer(second)) / 2)
    assert not torch.allclose(mixer(first.flip(1)), mixer(first).flip(1), atol=1e-2)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("linformer", {"kept": 65}, r"linformer: kept is 65; the maximum is length \(64\)\."),
        ("reformer", {"buckets": 7}, "buckets is 7; it must be even"),
        ("longformer", {"window": 0}, "window: .* greater than 0"),
        ("performer", {"kept": 3}, "performer has no size 'kept'; available: "),
    ],
)
def test_mixer_sizes_invalid_rejected(name: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        find_architecture(name).model.Sizes.read(sizes, name)
