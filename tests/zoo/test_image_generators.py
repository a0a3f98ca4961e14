"""Image generation: the Fréchet distance, the adversarial loss and training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.linalg import sqrtm
from torch import nn

from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.architectures.transgan import TransGan
from headwaiter_export.zoo.data.digits import TRAINING_EXAMPLES, digits
from headwaiter_export.zoo.data.drawn_digits import DrawnDigits, frechet_distance, random_shift
from headwaiter_export.zoo.layers.image_embedding import pixel_shuffle_upsample
from headwaiter_export.zoo.registry import find_architecture
from headwaiter_export.zoo.sizes import ImageGeneratorSizes
from headwaiter_export.zoo.training import Progress, train


@pytest.fixture(scope="module")
def data() -> DrawnDigits:
    return DrawnDigits()


def make_small_model() -> TransGan:
    torch.manual_seed(0)
    return TransGan(ImageGeneratorSizes(size=64, heads=2, layers=1))


def test_frechet_distance_matches_formula() -> None:
    """With a matrix square root, as in Dowson and Landau 1982."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((50, 6)) @ rng.standard_normal((6, 6))
    second = rng.standard_normal((70, 6)) @ rng.standard_normal((6, 6)) + 1
    mean_difference = first.mean(0) - second.mean(0)
    first_covariance, second_covariance = np.cov(first.T), np.cov(second.T)
    expected = mean_difference @ mean_difference + np.trace(
        first_covariance + second_covariance - 2 * np.real(sqrtm(first_covariance @ second_covariance))
    )
    assert frechet_distance(first, second) == pytest.approx(expected)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-9)


def test_frechet_distance_separates_digits_from_noise_and_single_class(data: DrawnDigits) -> None:
    images, targets = digits()
    held_out = data.features(images[TRAINING_EXAMPLES:])
    training_distance = frechet_distance(held_out, data.features(images[:360]))
    single_class_distance = frechet_distance(
        held_out, data.features(images[:TRAINING_EXAMPLES][targets[:TRAINING_EXAMPLES] == 3])
    )
    noise_distance = frechet_distance(held_out, data.features(np.random.default_rng(0).random((360, 8, 8), np.float32)))
    assert training_distance < 0.5
    assert single_class_distance > 20 * training_distance
    assert noise_distance > 20 * training_distance
    assert np.mean(data.classify(images[TRAINING_EXAMPLES:]) == targets[TRAINING_EXAMPLES:]) > 0.95


def test_pixel_shuffle_upsample_matches_torch() -> None:
    """Each cell becomes 2 × 2 cells of its own."""
    states = torch.randn(2, 9, 8)
    grid = states.transpose(1, 2).reshape(2, 8, 3, 3)
    expected = nn.PixelShuffle(2)(grid).reshape(2, 2, 36).transpose(1, 2)
    torch.testing.assert_close(pixel_shuffle_upsample(states, 3), expected, atol=0, rtol=0)
    changed = states.clone()
    changed[:, 4] += 1
    cells = (
        (pixel_shuffle_upsample(changed, 3) != pixel_shuffle_upsample(states, 3))
        .any(2)[0]
        .reshape(6, 6)
        .nonzero()
        .tolist()
    )
    assert cells == [[2, 2], [2, 3], [3, 2], [3, 3]]


def test_random_shift_keeps_inner_pixels() -> None:
    images = torch.rand(50, 3, 8, 8)
    shifted = random_shift(images, np.random.default_rng(0))
    assert shifted.shape == images.shape
    for before, after in zip(images[:, :, 1:-1, 1:-1], shifted, strict=True):
        crops = [after[:, y : y + 6, x : x + 6] for y in range(3) for x in range(3)]
        assert sum(torch.equal(before, crop) for crop in crops) == 1


def test_loss_generator_and_discriminator_gradients_are_opposed(data: DrawnDigits) -> None:
    """A small step of the discriminator separates real from generated images better; one of the generator does the
    opposite."""
    model = make_small_model()
    real = torch.from_numpy(digits()[0][:64])[:, None].expand(-1, 3, -1, -1)
    noise = torch.randn(64, model.sizes.noise)

    def mean_scores() -> tuple[float, float]:
        with torch.no_grad():
            return float(model.critic(real).mean()), float(model.critic(model(noise)).mean())

    before = mean_scores()
    data.loss(model, np.random.default_rng(0), 64).backward()
    discriminator_weights = set(model.critic.parameters())
    steps = {weight: -0.01 * weight.grad / weight.grad.norm() for weight in model.parameters() if weight.grad.norm()}

    def scores_after_step(of_discriminator: bool) -> tuple[float, float]:
        selected_steps = {
            weight: step for weight, step in steps.items() if (weight in discriminator_weights) is of_discriminator
        }
        with torch.no_grad():
            for weight, step in selected_steps.items():
                weight += step
            scores = mean_scores()
            for weight, step in selected_steps.items():
                weight -= step
        return scores

    discriminator_step, generator_step = scores_after_step(True), scores_after_step(False)
    assert discriminator_step[0] - discriminator_step[1] > before[0] - before[1]
    assert generator_step[1] > before[1]
    assert generator_step[0] == pytest.approx(before[0])


def test_train_interrupted_resumes_generator_and_discriminator(tmp_path: Path) -> None:
    architecture = find_architecture("transgan")

    def interrupt(progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(architecture, tmp_path / "resumed", steps=5, save_every=2, on_progress=interrupt)
    train(architecture, tmp_path / "resumed", steps=5, save_every=2)
    train(architecture, tmp_path / "uninterrupted", steps=5)
    resumed, uninterrupted = (load_file(tmp_path / name / "model.safetensors") for name in ("resumed", "uninterrupted"))
    assert any(name.startswith("critic.") for name in uninterrupted)
    for name, weight in uninterrupted.items():
        torch.testing.assert_close(resumed[name], weight, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"image": 12, "start": 5}, r"image is 12; .* start \(5\)"),
        ({"size": 40}, "size is 40; .* multiple of 32"),
        ({"image": 8, "patch": 3}, r"image is 8; .* patch \(3\)"),
    ],
)
def test_image_generator_sizes_invalid_rejected(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        ImageGeneratorSizes.read({"heads": 2, "size": 64, **sizes}, "here")


@pytest.mark.slowest
def test_train_reduces_frechet_distance(data: DrawnDigits, tmp_path: Path) -> None:
    """With a fraction of the recipe's steps."""
    architecture = find_architecture("transgan")
    held_out = data.features(digits()[0][TRAINING_EXAMPLES:])
    noise = torch.randn(200, 32, generator=torch.Generator().manual_seed(0))

    def distance(steps: int) -> float:
        train(architecture, tmp_path / str(steps), steps=steps)
        model = architecture.model(architecture.sizes(data))
        model.load_state_dict(load_file(tmp_path / str(steps) / "model.safetensors"))
        with torch.no_grad():
            return frechet_distance(held_out, data.features(model.eval()(noise).mean(1).numpy()))

    assert distance(300) < 0.7 * distance(1)
