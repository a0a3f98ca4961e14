"""What is painted: how far it is from real digits, and how painter and critic learn from each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.linalg import sqrtm
from torch import nn

from export.errors import SourceError
from export.zoo.data.digits import TRAINED, digits
from export.zoo.data.drawn_digits import DrawnDigits, frechet, moved
from export.zoo.kit.images import enlarged
from export.zoo.registry import find
from export.zoo.sizes import PainterSizes
from export.zoo.systems.transgan import TransGan
from export.zoo.training import Progress, train


@pytest.fixture(scope="module")
def data() -> DrawnDigits:
    return DrawnDigits()


def small() -> TransGan:
    torch.manual_seed(0)
    return TransGan(PainterSizes(size=64, heads=2, layers=1))


def test_the_distance_is_that_of_normal_distributions() -> None:
    """Written out with a matrix root, as Dowson and Landau 1982 have it."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((50, 6)) @ rng.standard_normal((6, 6))
    second = rng.standard_normal((70, 6)) @ rng.standard_normal((6, 6)) + 1
    means = first.mean(0) - second.mean(0)
    one, two = np.cov(first.T), np.cov(second.T)
    expected = means @ means + np.trace(one + two - 2 * np.real(sqrtm(one @ two)))
    assert frechet(first, second) == pytest.approx(expected)
    assert frechet(first, first) == pytest.approx(0, abs=1e-9)


def test_the_distance_tells_digits_from_noise_and_from_one_digit_alone(data: DrawnDigits) -> None:
    images, answers = digits()
    held_out = data.features(images[TRAINED:])
    near = frechet(held_out, data.features(images[:360]))
    alone = frechet(held_out, data.features(images[:TRAINED][answers[:TRAINED] == 3]))
    noise = frechet(held_out, data.features(np.random.default_rng(0).random((360, 8, 8), np.float32)))
    assert near < 0.5
    assert alone > 20 * near
    assert noise > 20 * near
    assert np.mean(data.recognised(images[TRAINED:]) == answers[TRAINED:]) > 0.95


def test_enlarging_gives_each_cell_four_of_its_own() -> None:
    """The four quarters of a cell's numbers lie where torch's PixelShuffle puts them in an image."""
    states = torch.randn(2, 9, 8)
    grid = states.transpose(1, 2).reshape(2, 8, 3, 3)
    expected = nn.PixelShuffle(2)(grid).reshape(2, 2, 36).transpose(1, 2)
    torch.testing.assert_close(enlarged(states, 3), expected, atol=0, rtol=0)
    changed = states.clone()
    changed[:, 4] += 1
    cells = (enlarged(changed, 3) != enlarged(states, 3)).any(2)[0].reshape(6, 6).nonzero().tolist()
    assert cells == [[2, 2], [2, 3], [3, 2], [3, 3]]


def test_moved_images_are_cut_from_wider_ones() -> None:
    images = torch.rand(50, 3, 8, 8)
    shifted = moved(images, np.random.default_rng(0))
    assert shifted.shape == images.shape
    for before, after in zip(images[:, :, 1:-1, 1:-1], shifted, strict=True):
        inner = [after[:, y : y + 6, x : x + 6] for y in range(3) for x in range(3)]
        assert sum(torch.equal(before, each) for each in inner) == 1


def test_painter_and_critic_pull_in_opposite_directions(data: DrawnDigits) -> None:
    """A small step of one alone: the critic's tells real from drawn better, the painter's fools it more."""
    model = small()
    real = torch.from_numpy(digits()[0][:64])[:, None].expand(-1, 3, -1, -1)
    noise = torch.randn(64, model.sizes.noise)

    def verdicts() -> tuple[float, float]:
        with torch.no_grad():
            return float(model.critic(real).mean()), float(model.critic(model(noise)).mean())

    before = verdicts()
    data.loss(model, np.random.default_rng(0), 64).backward()
    critics = set(model.critic.parameters())
    steps = {weight: -0.01 * weight.grad / weight.grad.norm() for weight in model.parameters() if weight.grad.norm()}

    def after(chosen: bool) -> tuple[float, float]:
        taken = {weight: step for weight, step in steps.items() if (weight in critics) is chosen}
        with torch.no_grad():
            for weight, step in taken.items():
                weight += step
            found = verdicts()
            for weight, step in taken.items():
                weight -= step
        return found

    taught, painted = after(True), after(False)
    assert taught[0] - taught[1] > before[0] - before[1]
    assert painted[1] > before[1]
    assert painted[0] == pytest.approx(before[0])


def test_training_of_both_goes_on_where_it_stopped(tmp_path: Path) -> None:
    system = find("transgan")

    def interrupt(now: Progress) -> None:
        if now.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(system, tmp_path / "halted", steps=5, save_every=2, watch=interrupt)
    train(system, tmp_path / "halted", steps=5, save_every=2)
    train(system, tmp_path / "whole", steps=5)
    halted, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("halted", "whole"))
    assert any(name.startswith("critic.") for name in whole)
    for name, weight in whole.items():
        torch.testing.assert_close(halted[name], weight, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"image": 12, "start": 5}, "image is 12, which doubling start 5 does not reach"),
        ({"size": 40}, "size is 40, which must be a multiple of 32"),
        ({"image": 8, "patch": 3}, "image is 8, which patch 3 does not divide"),
    ],
)
def test_sizes_that_do_not_fit(sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        PainterSizes.read({"heads": 2, "size": 64, **sizes}, "here")


@pytest.mark.slow
def test_learns_to_draw(data: DrawnDigits, tmp_path: Path) -> None:
    """A part of the recipe's steps already brings what is drawn clearly nearer to digits."""
    system = find("transgan")
    held_out = data.features(digits()[0][TRAINED:])
    noise = torch.randn(200, 32, generator=torch.Generator().manual_seed(0))

    def distance(steps: int) -> float:
        train(system, tmp_path / str(steps), steps=steps)
        model = system.model(system.sizes(data))
        model.load_state_dict(load_file(tmp_path / str(steps) / "model.safetensors"))
        with torch.no_grad():
            return frechet(held_out, data.features(model.eval()(noise).mean(1).numpy()))

    assert distance(300) < 0.7 * distance(1)
