"""What the papers of cheaper attention say of their mixers, by formulas apart or by transformers' implementation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from export.errors import SourceError
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import Reversible
from export.zoo.kit.mixers.fourier import FourierMixer
from export.zoo.kit.mixers.linformer import LinformerMixer
from export.zoo.kit.mixers.longformer import LongformerMixer
from export.zoo.kit.mixers.performer import PerformerMixer, linear_attention, orthogonal_directions
from export.zoo.kit.mixers.reformer import ReformerMixer
from export.zoo.kit.mixers.synthesizer import DenseSynthesizer, RandomSynthesizer
from export.zoo.registry import find

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
def drawn_alike() -> None:
    torch.manual_seed(3)


def seen_from(mixer: nn.Module, states: Tensor, place: int) -> set[int]:
    """The places whose states change the answer at that one."""
    states = states.clone().requires_grad_()
    answer = mixer(states, torch.tensor([states.shape[1]]))
    (gradient,) = torch.autograd.grad(answer[0, place].square().sum(), states)
    return set(gradient[0].abs().sum(1).nonzero().flatten().tolist())


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_padding_is_not_seen(name: str) -> None:
    mixer, states = MIXERS[name](LENGTH), torch.randn(2, LENGTH, SIZE)
    together = mixer(states, torch.tensor([LENGTH, 21]))
    torch.testing.assert_close(mixer(states[1:, :21], torch.tensor([21]))[0], together[1, :21])
    torch.testing.assert_close(mixer(states[:1], None)[0], together[0])


@pytest.mark.parametrize("name", ["linformer", "performer", "reformer", "longformer"])
@torch.no_grad()
def test_thousands_of_tokens(name: str) -> None:
    answer = MIXERS[name](5000)(torch.randn(1, 5000, SIZE), torch.tensor([4999]))
    assert answer.shape == (1, 5000, SIZE)
    assert answer.isfinite().all()


@torch.no_grad()
def test_fourier_is_the_transform_of_both_axes() -> None:
    states = torch.randn(2, 12, SIZE)
    expected = torch.fft.fft2(states, norm="ortho").real
    torch.testing.assert_close(FourierMixer(12, SIZE)(states), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_linformer_that_keeps_everything_is_softmax_attention() -> None:
    full, mixer = SelfAttention(SIZE, HEADS), LinformerMixer(SIZE, HEADS, LENGTH, LENGTH)
    mixer.load_state_dict(full.state_dict() | {"key_sums": torch.eye(LENGTH), "value_sums": torch.eye(LENGTH)})
    states = torch.randn(2, LENGTH, SIZE)
    torch.testing.assert_close(mixer(states), full(states))


@torch.no_grad()
def test_performer_comes_nearer_to_softmax_with_more_features() -> None:
    value, query, key = torch.randn(3, 1, 4, LENGTH, 8)
    query, key = 0.3 * query, 0.3 * key  # the variance grows exponentially with their lengths
    expected = scaled_dot_product_attention(query, key, value)
    errors = [
        (linear_attention(query, key, value, orthogonal_directions(count, 8)) - expected).square().mean().sqrt()
        for count in (16, 256, 4096)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.05 * expected.std()


def test_directions_are_at_right_angles_within_a_block_and_prefer_no_side() -> None:
    directions = orthogonal_directions(8 * 500 + 4, 8)
    assert directions.mean(1).abs().max() < 0.06
    torch.testing.assert_close(directions.square().mean(1), torch.ones(8), atol=0.1, rtol=0)
    for block in directions.split(8, 1):
        products = block.T @ block
        torch.testing.assert_close(products, products.diag().diag(), atol=1e-5, rtol=0)


def test_longformer_sees_its_window_and_the_first() -> None:
    mixer, states = LongformerMixer(SIZE, HEADS, 4), torch.randn(1, LENGTH, SIZE)
    assert seen_from(mixer, states, 0) == set(range(LENGTH))
    assert seen_from(mixer, states, 2) == set(range(7))
    assert seen_from(mixer, states, 23) == {0, *range(19, 28)}
    assert seen_from(mixer, states, LENGTH - 1) == {0, *range(LENGTH - 5, LENGTH)}


@torch.no_grad()
def test_longformer_answers_as_transformers_does() -> None:
    config = LongformerConfig(hidden_size=SIZE, num_attention_heads=HEADS, attention_window=[8])
    reference = LongformerSelfAttention(config, layer_id=0).eval()
    mixer = LongformerMixer(SIZE, HEADS, window=4)
    mixer.out = nn.Linear(SIZE, SIZE, bias=False)
    mixer.out.weight.copy_(torch.eye(SIZE))  # transformers has this product in another module
    weights = reference.state_dict()
    ours = {"query": "query", "key": "key", "value": "value"}
    ours |= {f"global_{name}": f"{name}_global" for name in ("query", "key", "value")}
    for own, name in ours.items():
        mixer.get_submodule(own).load_state_dict({kind: weights[f"{name}.{kind}"] for kind in ("weight", "bias")})
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
    got = mixer(states, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(got[row, :length], expected[row, :length], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_reformer_answers_as_attention_over_what_the_paper_lets_a_token_see() -> None:
    mixer, states, length = ReformerMixer(SIZE, HEADS, 4, chunk=8, rounds=3), torch.randn(1, LENGTH, SIZE), 37
    query, value = (part(states[0, :length]).unflatten(1, (HEADS, -1)) for part in (mixer.query, mixer.value))
    expected = torch.zeros(length, HEADS, SIZE // HEADS)
    for hashing, rotation in enumerate(mixer.rotations):
        head = hashing % HEADS
        rotated = query[:, head] @ rotation
        buckets = torch.cat([rotated, -rotated], 1).argmax(1).tolist()
        order = sorted(range(length), key=lambda place: (buckets[place], place))
        for at, place in enumerate(order):
            begin = (at // 8) * 8
            seen = [other for other in order[max(0, begin - 8) : begin + 8] if other != place]
            keys = torch.stack([query[other, head] / query[other, head].norm() for other in seen])
            expected[place, head] += (keys @ query[place, head]).softmax(0) @ value[seen, head] / 3
    got = mixer(states, torch.tensor([length]))[0, :length]
    torch.testing.assert_close(got, mixer.out(expected.flatten(1)), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_reformer_shows_a_token_to_itself_only_where_nothing_else_is() -> None:
    mixer, states = ReformerMixer(SIZE, HEADS, 4, 8), torch.randn(1, 1, SIZE)
    torch.testing.assert_close(mixer(states, torch.tensor([1])), mixer.out(mixer.value(states)))


@torch.no_grad()
def test_near_vectors_share_buckets_more_than_others() -> None:
    mixer, vectors = ReformerMixer(SIZE, HEADS, 8, 8), torch.randn(1, HEADS, 500, SIZE // HEADS)
    hashes = mixer.hashes(vectors)
    near = (mixer.hashes(vectors + 0.05 * torch.randn_like(vectors)) == hashes).float().mean()
    others = (mixer.hashes(torch.randn_like(vectors)) == hashes).float().mean()
    assert near > 0.9
    assert others < 0.2
    assert mixer.hashes(7 * vectors).equal(hashes)


@torch.no_grad()
def test_reversible_blocks_are_undone() -> None:
    block = Reversible(ReformerMixer(SIZE, HEADS, 4, 8), SIZE, 32).double()
    states, lengths = torch.randn(2, LENGTH, 2 * SIZE, dtype=torch.float64), torch.tensor([LENGTH, 30])
    after = block(states, lengths)
    assert not torch.allclose(after, states, atol=0.1)
    torch.testing.assert_close(block.undone(after, lengths), states)


@torch.no_grad()
def test_a_dense_synthesizer_weighs_places_by_a_layer_over_each_token() -> None:
    mixer, states = DenseSynthesizer(SIZE, HEADS, LENGTH), torch.randn(1, LENGTH, SIZE)
    wishes = mixer.wish(states[0]).relu()
    seen = []
    for mine, places, value in zip(
        *(part.chunk(HEADS, 1) for part in (wishes, mixer.places, mixer.value(states[0]))), strict=True
    ):
        layer = nn.Linear(SIZE // HEADS, LENGTH, bias=False)
        layer.weight.copy_(places)
        seen.append(layer(mine).softmax(1) @ value)
    torch.testing.assert_close(mixer(states)[0], mixer.out(torch.cat(seen, 1)))


@torch.no_grad()
def test_a_random_synthesizer_mixes_all_texts_alike() -> None:
    """Its answer is linear in the values: the weights depend on places alone."""
    mixer, (first, second) = RandomSynthesizer(SIZE, HEADS, LENGTH), torch.randn(2, 1, LENGTH, SIZE)
    torch.testing.assert_close(mixer((first + second) / 2), (mixer(first) + mixer(second)) / 2)
    assert not torch.allclose(mixer(first.flip(1)), mixer(first).flip(1), atol=1e-2)


@pytest.mark.parametrize(
    ("name", "sizes", "sentence"),
    [
        ("linformer", {"kept": 65}, "linformer: kept is 65, more than the length 64."),
        ("reformer", {"buckets": 7}, "buckets is 7: they are pairs of opposite directions, so it must be even."),
        ("longformer", {"window": 0}, "window: Input should be greater than 0"),
        ("performer", {"kept": 3}, "performer has no size 'kept'; it has"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_a_sentence(name: str, sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        find(name).model.Sizes.read(sizes, name)
