"""Handwritten digits to be drawn instead of read: what is drawn is judged beside digits that were held out."""

from __future__ import annotations

import io
import warnings
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad, softplus

from export.zoo.data.base import Data
from export.zoo.data.batches import HELD_OUT_SEED
from export.zoo.data.digits import TRAINED, digits
from export.zoo.model import Painter, ZooModel

_SMOOTHNESS = 1.0  # weight of the slope of the critic's verdict where images are real
_AT_ONCE = 60  # images asked for in one call
_GLIMPSED = 360


class DrawnDigits(Data):
    """The metric is Fréchet's distance (Heusel et al. 2017) between digits held out and as many drawn ones, in the
    hidden layer of a small classifier that was trained on the digits to learn from: the same one every time. Digits to
    learn from are at about 0.2 from those held out, pixels of noise at about 23."""

    name = "drawn-digits"
    learners = (Painter,)
    metric = "Fréchet distance"
    chance = 23.0
    higher_is_better = False

    def __init__(self) -> None:
        self._images, self._answers = digits()

    def sizes(self) -> dict[str, Any]:
        return {"image": self._images.shape[1]}

    def optimised(self, model: ZooModel) -> list[Any]:
        """Without momentum: what the critic wants changes too fast for it."""
        return [{"params": list(model.parameters()), "betas": (0.0, 0.99), "weight_decay": 0.0}]

    def loss(self, model: Painter, rng: np.random.Generator, batch: int) -> Tensor:
        """Goodfellow et al. 2014, both sides at once: the painter's loss leaves the critic alone, and the critic's the
        painter. The critic sees everything moved by a pixel or so, and where images are real, its slope is held down
        (Mescheder et al. 2018)."""
        chosen = rng.integers(0, TRAINED, batch)
        real = torch.from_numpy(self._images[chosen])[:, None].expand(-1, 3, -1, -1)
        real = moved(real, rng).requires_grad_()
        drawn = moved(model(torch.from_numpy(rng.standard_normal((batch, model.sizes.noise), np.float32))), rng)
        model.critic.requires_grad_(False)
        painter = softplus(-model.critic(drawn)).mean()
        model.critic.requires_grad_(True)
        verdict = model.critic(real)
        (slope,) = torch.autograd.grad(verdict.sum(), real, create_graph=True)
        critic = softplus(-verdict).mean() + softplus(model.critic(drawn.detach())).mean()
        return painter + critic + _SMOOTHNESS * slope.square().flatten(1).sum(1).mean()

    def glimpse(self, model: Painter, rng: np.random.Generator) -> float:
        """Beside as many of the digits to learn from."""
        noise = torch.from_numpy(rng.standard_normal((_GLIMPSED, model.sizes.noise), np.float32))
        real = self._images[rng.integers(0, TRAINED, _GLIMPSED)]
        return frechet(self.features(real), self.features(model(noise).mean(1).numpy()))

    def measure(self, served: Any, most: int | None = None) -> float:
        held_out = self._images[TRAINED:]
        drawn = draw(served, len(held_out) if most is None else max(2, most))
        return frechet(self.features(held_out), self.features(drawn))

    def features(self, images: NDArray[np.float32]) -> NDArray[np.float64]:
        """What the classifier's hidden layer makes of images [images, height, width]."""
        weights, biases = self._classifier.coefs_[0], self._classifier.intercepts_[0]
        return np.maximum(images.reshape(len(images), -1) @ weights + biases, 0)

    def recognised(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        """Which digits the classifier takes them for."""
        found: NDArray[np.int64] = self._classifier.predict(images.reshape(len(images), -1))
        return found

    @cached_property
    def _classifier(self) -> Any:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier

        classifier = MLPClassifier((32,), random_state=0, max_iter=100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is good enough by then
            return classifier.fit(self._images[:TRAINED].reshape(TRAINED, -1), self._answers[:TRAINED])


def draw(served: Any, count: int) -> NDArray[np.float32]:
    """Grey images [count, height, width], from 0 to 1, of a model opened by `open_model`."""
    files: list[bytes] = []
    while len(files) < count:
        wanted = min(_AT_ONCE, count - len(files))
        files += served.generate_images(wanted, seed=HELD_OUT_SEED + len(files))
    grey = [np.asarray(Image.open(io.BytesIO(file)).convert("L"), np.float32) / 255 for file in files]
    return np.stack(grey)


def frechet(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Between the normal distributions that two sets of features [images, size] have the mean and covariance of."""
    values, vectors = np.linalg.eigh(np.cov(first.T))
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    shared = np.sqrt(np.linalg.eigvalsh(root @ np.cov(second.T) @ root).clip(0)).sum()
    apart = np.square(first.mean(0) - second.mean(0)).sum()
    return float(apart + np.trace(np.cov(first.T)) + np.trace(np.cov(second.T)) - 2 * shared)


def moved(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Each by a pixel or none, up or down and left or right (Zhao et al. 2020: real and drawn ones alike)."""
    side = images.shape[2]
    wide = pad(images, (1, 1, 1, 1))
    corners = rng.integers(0, 3, (len(images), 2))
    return torch.stack([each[:, y : y + side, x : x + side] for each, (y, x) in zip(wide, corners, strict=True)])
