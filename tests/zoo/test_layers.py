"""Layers and architectures for depth, slots, positions and vision, compared with transformers or with formulas."""

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

from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.architectures.cait import CaiT, CaitSizes, ClassAttention, LayerScaleBlock
from headwaiter_export.zoo.architectures.deit import DeiT
from headwaiter_export.zoo.architectures.mlp_mixer import MlpMixer, MlpMixerSizes
from headwaiter_export.zoo.architectures.perceiver import Perceiver, PerceiverSizes
from headwaiter_export.zoo.architectures.roformer import RotaryAttention
from headwaiter_export.zoo.architectures.shared_workspace import SharedWorkspace
from headwaiter_export.zoo.architectures.swin import Swin, SwinSizes, WindowAttention
from headwaiter_export.zoo.architectures.universal_transformer import (
    AdaptiveComputation,
    UniversalSizes,
    UniversalTransformer,
)
from headwaiter_export.zoo.data.distilled_digits import DistilledDigits
from headwaiter_export.zoo.layers.attention import CrossAttention
from headwaiter_export.zoo.layers.positions import Rotary
from headwaiter_export.zoo.layers.slots import Slots, SlotSizes
from headwaiter_export.zoo.sizes import ImageSizes

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


def convert_weights(original: PreTrainedModel, names: dict[str, Any]) -> dict[str, Tensor]:
    """Weights of a transformers model under the tensor names of the zoo."""
    converted = {}
    for name, weight in original.state_dict().items():
        for pattern, replacement in {**names, **_SHARED_NAMES}.items():
            name = re.sub(pattern, replacement, name)
        converted[name] = weight
    return converted


def perturb(module: nn.Module, by: float = 0.1) -> Any:
    """Move weights away from zeros and ones, which would hide errors."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(by * torch.randn_like(weight))
    return module.eval()


@torch.no_grad()
def test_swin_matches_transformers() -> None:
    """Windows, shifts, masks, relative positions and merging over three stages."""
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
    original = perturb(SwinForImageClassification(config))
    starts = [0, 3, 7]  # first layer of each stage in the stack, where merging is a layer too
    weights = convert_weights(
        original,
        {
            r"swin\.encoder\.layers\.(\d)\.blocks\.(\d)": lambda m: f"stack.{starts[int(m[1])] + int(m[2])}",
            r"swin\.encoder\.layers\.(\d)\.downsample": lambda m: f"stack.{starts[int(m[1]) + 1] - 1}",
            r"attention\.relative_position_bias\.relative_position_bias_table": "mixer.relative.table",
            r"swin\.embeddings\.norm": "patches_norm",
            r"classifier": "head",
        },
    )
    attention_projections = re.compile(r"mixer\.(?=query|key|value|out)")
    weights = {attention_projections.sub("mixer.attention.", name): weight for name, weight in weights.items()}
    model = Swin(SwinSizes(image=32, patch=2, size=8, heads=1, depths=(2, 3, 1), window=4)).eval()
    model.load_state_dict(weights)
    pixels = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(pixels), original(pixels).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (0, {(row, column) for row in range(4) for column in range(4)}),
        (2, {(row, column) for row in range(2) for column in range(2)}),
    ],
    ids=["plain", "shifted"],
)
def test_window_attention_attends_within_window(shift: int, expected: set[tuple[int, int]]) -> None:
    """A shifted corner window holds patches from all four corners, which must not attend to each other."""
    attention = perturb(WindowAttention(8, 2, grid=8, window=4, shift=shift))
    states = torch.randn(1, 64, 8, requires_grad=True)
    attention(states)[0, 0].sum().backward()
    assert states.grad is not None
    attended = states.grad[0].abs().sum(1).reshape(8, 8) > 1e-7
    assert {(int(row), int(column)) for row, column in attended.nonzero()} == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"window": 3}, r"stage 0 is 8 wide; .* window \(3\)"),
        ({"image": 10, "window": 5}, "stage 0 is 5 wide; it must be even"),
        ({"heads": 3}, r"size is 32; it must be a multiple of heads \(3\)"),
        ({"patch": 3}, r"image is 16; .* patch \(3\)"),
    ],
)
def test_swin_sizes_invalid_rejected(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        SwinSizes.read(sizes, "swin")


@torch.no_grad()
def test_deit_matches_transformers() -> None:
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
    original = perturb(DeiTForImageClassificationWithTeacher(config))
    weights = convert_weights(
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
    class_scores, distillation_scores = model.class_and_distillation_scores(pixels)
    torch.testing.assert_close(class_scores, expected.cls_logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(distillation_scores, expected.distillation_logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(pixels), expected.logits, atol=1e-5, rtol=1e-4)


def test_distilled_digits_teacher_is_target_of_distillation_head() -> None:
    data = DistilledDigits()
    pixels, targets = data.sample_batch(np.random.default_rng(0), 256)
    with torch.no_grad():
        predicted = data.teacher(pixels).argmax(1)
    assert (predicted == targets).float().mean() > 0.97

    class TeacherCopy(nn.Module):
        """Uniform class scores; distillation scores that repeat the teacher."""

        def class_and_distillation_scores(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                teacher_targets = data.teacher(pixels).argmax(1)
            return torch.zeros(len(pixels), 10), 50.0 * nn.functional.one_hot(teacher_targets, 10)

    loss = data.loss(TeacherCopy(), np.random.default_rng(0), 256)
    assert float(loss) == pytest.approx(math.log(10) / 2, abs=1e-4)


@torch.no_grad()
def test_class_attention_matches_torch() -> None:
    layer = perturb(ClassAttention(16, 4, 32))
    token, patches = torch.randn(2, 1, 16), torch.randn(2, 9, 16)
    projections = layer.attention
    reference = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    reference.in_proj_weight.copy_(
        torch.cat([projections.query.weight, projections.key.weight, projections.value.weight])
    )
    reference.in_proj_bias.copy_(torch.cat([projections.query.bias, projections.key.bias, projections.value.bias]))
    reference.out_proj.load_state_dict(projections.out.state_dict())
    normed = layer.attention_norm(torch.cat([token, patches], 1))
    expected = token + layer.attention_scale.weight * reference(normed[:, :1], normed, normed)[0]
    expected = expected + layer.feed_scale.weight * layer.feed_forward(layer.feed_norm(expected))
    torch.testing.assert_close(layer(token, patches), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_layer_scale_block_initial_change_is_small() -> None:
    model = CaiT(CaitSizes(layers=12)).eval()
    states = torch.randn(2, 16, 64)
    change = model.stack[0](states) - states
    block: Any = LayerScaleBlock(model.stack[0].mixer, 64, 128)
    block.load_state_dict(model.stack[0].state_dict())
    for scale in (block.mixer_scale, block.feed_scale):
        scale.weight.fill_(1.0)
    assert change.norm() < 0.2 * (block(states) - states).norm()
    for scale in (block.mixer_scale, block.feed_scale):
        scale.weight.fill_(0.0)
    torch.testing.assert_close(block(states), states, atol=0, rtol=0)


@torch.no_grad()
def test_mlp_mixer_matches_formula() -> None:
    model = perturb(MlpMixer(MlpMixerSizes(layers=1)))
    block, pixels = model.stack[0], torch.randn(2, 3, 16, 16)

    def perceptron(layers: nn.Sequential, inputs: Tensor, axis: str) -> Tensor:
        first, last = layers[0], layers[2]
        equation = {"positions": "rpn,hp->rhn", "features": "rpn,hn->rph"}[axis]
        bias = {"positions": (slice(None), None), "features": (None, slice(None))}[axis]
        hidden = nn.functional.gelu(torch.einsum(equation, inputs, first.weight) + first.bias[bias])
        return torch.einsum(equation, hidden, last.weight) + last.bias[bias]

    patches = pixels.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(2, 16, 48)
    states = patches @ model.patches.weight.reshape(64, 48).T + model.patches.bias
    states = states + perceptron(block.mixer.feed_forward, block.mixer_norm(states), "positions")
    states = states + perceptron(block.feed_forward, block.feed_norm(states), "features")
    expected = model.norm(states).mean(1) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(pixels), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_rotary_attention_matches_transformers() -> None:
    config = RoFormerConfig(hidden_size=32, num_attention_heads=4, rotary_value=False, attention_probs_dropout_prob=0.0)
    original, attention = RoFormerSelfAttention(config).eval(), RotaryAttention(32, 4, length=24).eval()
    attention.out = nn.Identity()
    for name in ("query", "key", "value"):
        getattr(attention, name).load_state_dict(getattr(original, name).state_dict())
    table = RoFormerSinusoidalPositionalEmbedding(24, 8)
    table.weight.copy_(table.create_weight())
    states, lengths = torch.randn(3, 20, 32), torch.tensor([20, 11, 1])
    mask = torch.where(torch.arange(20)[None] < lengths[:, None], 0.0, -1e9)[:, None, None]
    expected = original(states, attention_mask=mask, sinusoidal_pos=table((3, 20))[None, None])[0]
    torch.testing.assert_close(attention(states, lengths), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_rotary_products_depend_on_distance_only() -> None:
    rotary, query, key = Rotary(40, 8), torch.randn(8), torch.randn(8)
    queries, keys = (rotary(vector.expand(1, 1, 40, 8)) for vector in (query, key))
    products = (queries @ keys.transpose(2, 3))[0, 0]
    for distance in (-7, 0, 3):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-4)
    assert products.diagonal(3)[0] != pytest.approx(float(products.diagonal(-3)[0]), abs=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("halting_bias", [-9.0, -0.5, 9.0])
def test_adaptive_computation_matches_formula(halting_bias: float) -> None:
    """Compared with adaptive computation time written out token by token."""
    stack = perturb(AdaptiveComputation(UniversalSizes(layers=5)), by=0.2)
    stack.halting.bias.fill_(halting_bias)
    states, length = torch.randn(1, 12, 64), torch.tensor([12])
    current, expected, costs = states.clone(), torch.zeros(12, 64), []
    cumulative, halted = [0.0] * 12, [False] * 12
    for step in range(5):
        updated = stack.block(current + stack.positions[:12] + stack.times[step], length)
        for token in range(12):
            if halted[token]:
                continue
            probability = float(torch.sigmoid(stack.halting(updated[0, token])))
            current[0, token] = updated[0, token]
            if step == 4 or cumulative[token] + probability > 0.99:
                halted[token], probability = True, 1 - cumulative[token]
                costs.append(step + 1 + probability)
            expected[token] += probability * updated[0, token]
            cumulative[token] += probability
    stack.train()  # the ponder cost is computed in training mode only
    torch.testing.assert_close(stack(states, length)[0], expected, atol=1e-4, rtol=1e-4)
    assert float(stack.ponder_cost) == pytest.approx(np.mean(costs), rel=1e-4)
    if halting_bias == 9.0:
        assert float(stack.ponder_cost) == pytest.approx(2.0, abs=0.05)  # one step plus a remainder of one


def test_universal_transformer_ponder_cost_ignores_padding() -> None:
    """The gradient favors earlier halting, and padding does not count."""
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
def test_slots_permuted_input_same_slots() -> None:
    """The number of slots does not depend on the length."""
    stack = perturb(Perceiver(PerceiverSizes())).stack
    states, lengths = torch.randn(2, 30, 64), torch.tensor([30, 30])
    slots, _ = stack(states, lengths)
    assert slots.shape == (2, 16, 64)
    torch.testing.assert_close(stack(states[:, torch.randperm(30)], lengths)[0], slots, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(stack(states[:, :29], lengths - 1)[0], slots, atol=1e-3)


@torch.no_grad()
def test_shared_workspace_is_only_path_between_tokens() -> None:
    """Without writing to the slots, a change of one token has no effect on the others."""
    stack = perturb(SharedWorkspace(SlotSizes())).stack
    assert isinstance(stack, Slots)
    states, lengths = torch.randn(1, 10, 64), torch.tensor([10])
    changed = states.clone()
    changed[:, 7] = torch.randn(64)
    others = [index for index in range(10) if index != 7]
    effect = (stack(changed, lengths)[1] - stack(states, lengths)[1])[0, others].norm(dim=1)
    assert effect.min() > 1e-3
    for layer in stack.layers:
        assert isinstance(layer.write, CrossAttention)
        layer.write.out.weight.zero_()
    after, before = (stack(inputs, lengths)[1][:, others] for inputs in (changed, states))
    torch.testing.assert_close(after, before, atol=0, rtol=0)
