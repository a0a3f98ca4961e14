"""Other depths, bottlenecks and positions, and the vision systems: what their papers promise, beside other people's
implementations where there are any."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    PreTrainedModel,
    RoFormerConfig,
    SwinConfig,
    SwinForImageClassification,
)
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)

from export.errors import SourceError
from export.zoo.data.taught import TaughtDigits
from export.zoo.kit.attention import CrossAttention
from export.zoo.kit.positions import Rotary
from export.zoo.kit.slots import Slots, SlotSizes
from export.zoo.sizes import ImageSizes
from export.zoo.systems.cait import CaiT, CaitSizes, ClassAttention, LayerScaled
from export.zoo.systems.deit import DeiT
from export.zoo.systems.mlp_mixer import MixerSizes, MlpMixer
from export.zoo.systems.perceiver import Perceiver, PerceiverSizes
from export.zoo.systems.roformer import RotaryAttention
from export.zoo.systems.shared_workspace import SharedWorkspace
from export.zoo.systems.swin import Swin, SwinSizes, WindowAttention
from export.zoo.systems.universal_transformer import Pondering, UniversalSizes, UniversalTransformer

MINE = (
    "cait",
    "deit",
    "mlp-mixer",
    "perceiver",
    "roformer",
    "shared-workspace",
    "swin",
    "universal-transformer",
)
_SHARED_NAMES = {
    r"\.attention\.q_proj": ".mixer.query",
    r"\.attention\.k_proj": ".mixer.key",
    r"\.attention\.v_proj": ".mixer.value",
    r"\.attention\.o_proj": ".mixer.out",
    r"layernorm_before": "mixer_norm",
    r"layernorm_after": "feed_norm",
    r"mlp\.fc1": "feed_forward.0",
    r"mlp\.fc2": "feed_forward.2",
    r"^\w+\.(embeddings\.)?patch_embeddings\.projection": "patches",
    r"^\w+\.layernorm": "norm",
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


def renamed(original: PreTrainedModel, names: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a model of transformers under the names that they have here."""
    found = {}
    for name, weight in original.state_dict().items():
        for pattern, ours in {**names, **_SHARED_NAMES}.items():
            name = re.sub(pattern, ours, name)
        found[name] = weight
    return found


def stirred(module: nn.Module, by: float = 0.1) -> Any:
    """Away from zeros and ones, which would hide a mistake."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(by * torch.randn_like(weight))
    return module.eval()


@torch.no_grad()
def test_swin_is_that_of_transformers() -> None:
    """Windows, shifts, masks, relative positions and merging, over three stages."""
    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=8,
        depths=[2, 3, 1],
        num_heads=[1, 2, 4],
        window_size=4,
        mlp_ratio=2.0,
        num_labels=10,
    )
    original = stirred(SwinForImageClassification(config))
    starts = [0, 3, 7]  # of the stages in the stack, where merging is a layer too
    weights = renamed(
        original,
        {
            r"swin\.encoder\.layers\.(\d)\.blocks\.(\d)": lambda m: f"stack.{starts[int(m[1])] + int(m[2])}",
            r"swin\.encoder\.layers\.(\d)\.downsample": lambda m: f"stack.{starts[int(m[1]) + 1] - 1}",
            r"attention\.relative_position_bias\.relative_position_bias_table": "mixer.relative.table",
            r"swin\.embeddings\.norm": "patches_norm",
            r"classifier": "head",
        },
    )
    inside = re.compile(r"mixer\.(?=query|key|value|out)")
    weights = {inside.sub("mixer.attention.", name): weight for name, weight in weights.items()}
    model = Swin(SwinSizes(image=32, patch=2, size=8, heads=1, depths=(2, 3, 1), window=4)).eval()
    model.load_state_dict(weights)
    pixels = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(pixels), original(pixels).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("shift", "seen"),
    [
        (0, {(row, column) for row in range(4) for column in range(4)}),
        (2, {(row, column) for row in range(2) for column in range(2)}),
    ],
    ids=["plain", "shifted"],
)
def test_a_window_sees_no_farther(shift: int, seen: set[tuple[int, int]]) -> None:
    """A shifted window in the corner holds patches from all four, and hides them from each other."""
    attention = stirred(WindowAttention(8, 2, grid=8, window=4, shift=shift))
    states = torch.randn(1, 64, 8, requires_grad=True)
    attention(states)[0, 0].sum().backward()
    assert states.grad is not None
    looked_at = states.grad[0].abs().sum(1).reshape(8, 8) > 1e-7
    assert {(int(row), int(column)) for row, column in looked_at.nonzero()} == seen


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"window": 3}, "the grid of stage 0 is 8 wide, which window 3 does not divide"),
        ({"image": 10, "window": 5}, "the grid of stage 0 is 5 wide, which does not merge two by two"),
        ({"heads": 3}, "size is 32, which heads 3 does not divide"),
        ({"patch": 3}, "image is 16, which patch 3 does not divide"),
    ],
)
def test_windows_that_do_not_fit_are_refused(sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        SwinSizes.read(sizes, "swin")


@torch.no_grad()
def test_deit_is_that_of_transformers() -> None:
    config = DeiTConfig(
        image_size=16,
        patch_size=4,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        layer_norm_eps=1e-5,
        num_labels=10,
    )
    original = stirred(DeiTForImageClassificationWithTeacher(config))
    weights = renamed(
        original,
        {
            r"deit\.layers": "stack",
            r"deit\.embeddings\.position_embeddings": "positions",
            r"cls_classifier": "head",
            r"distillation_classifier": "pupil",
        },
    )
    tokens = [weights.pop(f"deit.embeddings.{name}_token") for name in ("cls", "distillation")]
    model = DeiT(ImageSizes()).eval()
    model.load_state_dict({**weights, "first": torch.cat(tokens, 1)})
    pixels = torch.randn(2, 3, 16, 16)
    expected = original(pixels)
    own, taught = model.answers(pixels)
    torch.testing.assert_close(own, expected.cls_logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(taught, expected.distillation_logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(pixels), expected.logits, atol=1e-5, rtol=1e-4)


def test_the_teacher_knows_digits_and_is_what_the_second_answer_learns() -> None:
    data = TaughtDigits()
    pixels, truth = data.draw(np.random.default_rng(0), 256)
    with torch.no_grad():
        said = data.teacher(pixels).argmax(1)
    assert (said == truth).float().mean() > 0.97

    class Parrot(nn.Module):
        """Sure of one digit in each answer."""

        def answers(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                heard = data.teacher(pixels).argmax(1)
            return torch.zeros(len(pixels), 10), 50.0 * nn.functional.one_hot(heard, 10)

    loss = data.loss(Parrot(), np.random.default_rng(0), 256)
    assert float(loss) == pytest.approx(math.log(10) / 2, abs=1e-4)


@torch.no_grad()
def test_class_attention_changes_one_token_and_sees_all() -> None:
    layer = stirred(ClassAttention(16, 4, 32))
    token, patches = torch.randn(2, 1, 16), torch.randn(2, 9, 16)
    parts = layer.attention
    reference = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    reference.in_proj_weight.copy_(torch.cat([parts.query.weight, parts.key.weight, parts.value.weight]))
    reference.in_proj_bias.copy_(torch.cat([parts.query.bias, parts.key.bias, parts.value.bias]))
    reference.out_proj.load_state_dict(parts.out.state_dict())
    places = layer.attention_norm(torch.cat([token, patches], 1))
    expected = token + layer.attention_scale.weight * reference(places[:, :1], places, places)[0]
    expected = expected + layer.feed_scale.weight * layer.feed_forward(layer.feed_norm(expected))
    torch.testing.assert_close(layer(token, patches), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_what_layer_scale_lets_through_begins_small() -> None:
    model = CaiT(CaitSizes(layers=12)).eval()
    states = torch.randn(2, 16, 64)
    change = model.stack[0](states) - states
    loud: Any = LayerScaled(model.stack[0].mixer, 64, 128)
    loud.load_state_dict(model.stack[0].state_dict())
    for scale in (loud.mixer_scale, loud.feed_scale):
        scale.weight.fill_(1.0)
    assert change.norm() < 0.2 * (loud(states) - states).norm()
    for scale in (loud.mixer_scale, loud.feed_scale):
        scale.weight.fill_(0.0)
    torch.testing.assert_close(loud(states), states, atol=0, rtol=0)


@torch.no_grad()
def test_the_mixer_mixes_places_then_numbers() -> None:
    model = stirred(MlpMixer(MixerSizes(layers=1)))
    block, pixels = model.stack[0], torch.randn(2, 3, 16, 16)

    def perceptron(layers: nn.Sequential, given: Tensor, along: str) -> Tensor:
        first, last = layers[0], layers[2]
        made = {"places": "rpn,hp->rhn", "numbers": "rpn,hn->rph"}[along]
        bias = {"places": (slice(None), None), "numbers": (None, slice(None))}[along]
        inside = nn.functional.gelu(torch.einsum(made, given, first.weight) + first.bias[bias])
        return torch.einsum(made, inside, last.weight) + last.bias[bias]

    pieces = pixels.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(2, 16, 48)
    states = pieces @ model.patches.weight.reshape(64, 48).T + model.patches.bias
    states = states + perceptron(block.mixer.feed_forward, block.mixer_norm(states), "places")
    states = states + perceptron(block.feed_forward, block.feed_norm(states), "numbers")
    expected = model.norm(states).mean(1) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(pixels), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_rotary_attention_is_that_of_transformers() -> None:
    config = RoFormerConfig(hidden_size=32, num_attention_heads=4, rotary_value=False, attention_probs_dropout_prob=0.0)
    original, ours = RoFormerSelfAttention(config).eval(), RotaryAttention(32, 4, length=24).eval()
    ours.out = nn.Identity()
    for name in ("query", "key", "value"):
        getattr(ours, name).load_state_dict(getattr(original, name).state_dict())
    table = RoFormerSinusoidalPositionalEmbedding(24, 8)
    table.weight.copy_(table.create_weight())
    states, lengths = torch.randn(3, 20, 32), torch.tensor([20, 11, 1])
    hidden = torch.where(torch.arange(20)[None] < lengths[:, None], 0.0, -1e9)[:, None, None]
    expected = original(states, attention_mask=hidden, sinusoidal_pos=table((3, 20))[None, None])[0]
    torch.testing.assert_close(ours(states, lengths), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_products_of_turned_vectors_know_only_distances() -> None:
    rotary, query, key = Rotary(40, 8), torch.randn(8), torch.randn(8)
    queries, keys = (rotary(each.expand(1, 1, 40, 8)) for each in (query, key))
    products = (queries @ keys.transpose(2, 3))[0, 0]
    for distance in (-7, 0, 3):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-4)
    assert products.diagonal(3)[0] != pytest.approx(float(products.diagonal(-3)[0]), abs=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("eagerness", [-9.0, -0.5, 9.0])
def test_tokens_halt_as_graves_says(eagerness: float) -> None:
    """Beside adaptive computation time written out token by token."""
    stack = stirred(Pondering(UniversalSizes(layers=5)), by=0.2)
    stack.halting.bias.fill_(eagerness)
    states, length = torch.randn(1, 12, 64), torch.tensor([12])
    now, expected, spent = states.clone(), torch.zeros(12, 64), []
    sums, resting = [0.0] * 12, [False] * 12
    for step in range(5):
        moved = stack.block(now + stack.places[:12] + stack.times[step], length)
        for token in range(12):
            if resting[token]:
                continue
            probability = float(torch.sigmoid(stack.halting(moved[0, token])))
            now[0, token] = moved[0, token]
            if step == 4 or sums[token] + probability > 0.99:
                resting[token], probability = True, 1 - sums[token]
                spent.append(step + 1 + probability)
            expected[token] += probability * moved[0, token]
            sums[token] += probability
    stack.train()  # only a training pass keeps count
    torch.testing.assert_close(stack(states, length)[0], expected, atol=1e-4, rtol=1e-4)
    assert float(stack.ponder) == pytest.approx(np.mean(spent), rel=1e-4)
    if eagerness == 9.0:
        assert float(stack.ponder) == pytest.approx(2.0, abs=0.05)  # a single step, and all of it


def test_pondering_costs() -> None:
    """The loss asks for less thought, and padding does not think."""
    model = UniversalTransformer(UniversalSizes()).train()
    tokens, lengths = torch.randint(1, 32, (2, 16)), torch.tensor([16, 3])
    model(tokens, lengths)
    cost = model.extra_loss()
    assert isinstance(cost, Tensor)
    cost.backward()
    assert model.stack.halting.bias.grad.item() < 0
    tokens[1, 3:] = 5
    model(tokens, lengths)
    torch.testing.assert_close(model.extra_loss(), cost)


@torch.no_grad()
def test_slots_do_not_mind_the_order_of_what_they_see() -> None:
    """Only positions tell them of it; and as many come out whatever the length."""
    stack = stirred(Perceiver(PerceiverSizes())).stack
    states, lengths = torch.randn(2, 30, 64), torch.tensor([30, 30])
    slots, _ = stack(states, lengths)
    assert slots.shape == (2, 16, 64)
    torch.testing.assert_close(stack(states[:, torch.randperm(30)], lengths)[0], slots, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(stack(states[:, :29], lengths - 1)[0], slots, atol=1e-3)


@torch.no_grad()
def test_tokens_meet_only_in_the_workspace() -> None:
    """Once nothing is written there, what one token says reaches no other."""
    stack = stirred(SharedWorkspace(SlotSizes())).stack
    assert isinstance(stack, Slots)
    states, lengths = torch.randn(1, 10, 64), torch.tensor([10])
    changed = states.clone()
    changed[:, 7] = torch.randn(64)
    others = [index for index in range(10) if index != 7]
    heard = (stack(changed, lengths)[1] - stack(states, lengths)[1])[0, others].norm(dim=1)
    assert heard.min() > 1e-3
    for exchange in stack.layers:
        assert isinstance(exchange.write, CrossAttention)
        exchange.write.out.weight.zero_()
    after, before = (stack(each, lengths)[1][:, others] for each in (changed, states))
    torch.testing.assert_close(after, before, atol=0, rtol=0)
