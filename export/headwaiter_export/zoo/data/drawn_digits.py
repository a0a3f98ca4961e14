"""Handwritten digits as a target of image generation, evaluated against held-out digits."""

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

from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batches import HELD_OUT_SEED
from headwaiter_export.zoo.data.digits import TRAINING_EXAMPLES, digits
from headwaiter_export.zoo.model import ImageGenerator, ZooModel

_GRADIENT_PENALTY_WEIGHT = 1.0  # weight of the gradient penalty of the discriminator on real images
_IMAGES_PER_CALL = 60  # images requested per call
_VALIDATION_EXAMPLES = 360


class DrawnDigits(Dataset):
    """The metric is the Fréchet distance (Heusel et al. 2017) between held-out digits and as many generated ones, in
    the hidden layer of a small classifier that is trained deterministically on the training digits. Training digits are
    at a distance of about 0.2, noise images at about 23."""

    name = "drawn-digits"
    compatible_models = (ImageGenerator,)
    metric = "Fréchet distance"
    chance_level = 23.0
    higher_is_better = False

    def __init__(self) -> None:
        self._images, self._targets = digits()

    def sizes(self) -> dict[str, Any]:
        return {"image": self._images.shape[1]}

    def parameter_groups(self, model: ZooModel) -> list[Any]:
        """Disable momentum, because the gradient of the discriminator changes too fast for it."""
        return [{"params": list(model.parameters()), "betas": (0.0, 0.99), "weight_decay": 0.0}]

    def loss(self, model: ImageGenerator, rng: np.random.Generator, batch_size: int) -> Tensor:
        """Goodfellow et al. 2014, both losses in one step: the loss of the generator does not update the discriminator
        and vice versa. The discriminator sees randomly shifted images, with a gradient penalty on real ones (Mescheder
        et al. 2018)."""
        selected = rng.integers(0, TRAINING_EXAMPLES, batch_size)
        real = torch.from_numpy(self._images[selected])[:, None].expand(-1, 3, -1, -1)
        real = random_shift(real, rng).requires_grad_()
        generated = random_shift(
            model(torch.from_numpy(rng.standard_normal((batch_size, model.sizes.noise), np.float32))), rng
        )
        model.critic.requires_grad_(False)
        generator_loss = softplus(-model.critic(generated)).mean()
        model.critic.requires_grad_(True)
        real_scores = model.critic(real)
        (gradient,) = torch.autograd.grad(real_scores.sum(), real, create_graph=True)
        discriminator_loss = softplus(-real_scores).mean() + softplus(model.critic(generated.detach())).mean()
        return (
            generator_loss + discriminator_loss + _GRADIENT_PENALTY_WEIGHT * gradient.square().flatten(1).sum(1).mean()
        )

    def validate(self, model: ImageGenerator, rng: np.random.Generator) -> float:
        """Distance to training digits."""
        noise = torch.from_numpy(rng.standard_normal((_VALIDATION_EXAMPLES, model.sizes.noise), np.float32))
        real = self._images[rng.integers(0, TRAINING_EXAMPLES, _VALIDATION_EXAMPLES)]
        return frechet_distance(self.features(real), self.features(model(noise).mean(1).numpy()))

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        held_out = self._images[TRAINING_EXAMPLES:]
        generated = draw(served, len(held_out) if max_examples is None else max(2, max_examples))
        return frechet_distance(self.features(held_out), self.features(generated))

    def features(self, images: NDArray[np.float32]) -> NDArray[np.float64]:
        """Activations of the classifier's hidden layer for images [images, height, width]."""
        weights, biases = self._classifier.coefs_[0], self._classifier.intercepts_[0]
        return np.maximum(images.reshape(len(images), -1) @ weights + biases, 0)

    def classify(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        """Digits predicted by the classifier."""
        predictions: NDArray[np.int64] = self._classifier.predict(images.reshape(len(images), -1))
        return predictions

    @cached_property
    def _classifier(self) -> Any:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier

        classifier = MLPClassifier((32,), random_state=0, max_iter=100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # accurate enough at the iteration limit
            return classifier.fit(
                self._images[:TRAINING_EXAMPLES].reshape(TRAINING_EXAMPLES, -1), self._targets[:TRAINING_EXAMPLES]
            )


def draw(served: Any, count: int) -> NDArray[np.float32]:
    """Return generated gray images [count, height, width] in [0, 1] of a model opened with `open_model`."""
    files: list[bytes] = []
    while len(files) < count:
        requested = min(_IMAGES_PER_CALL, count - len(files))
        files += served.generate_images(requested, seed=HELD_OUT_SEED + len(files))
    gray = [np.asarray(Image.open(io.BytesIO(file)).convert("L"), np.float32) / 255 for file in files]
    return np.stack(gray)


def frechet_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Fréchet distance between normal distributions fitted to two sets of features [images, size]."""
    values, vectors = np.linalg.eigh(np.cov(first.T))
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    covariance_term = np.sqrt(np.linalg.eigvalsh(root @ np.cov(second.T) @ root).clip(0)).sum()
    mean_distance = np.square(first.mean(0) - second.mean(0)).sum()
    return float(mean_distance + np.trace(np.cov(first.T)) + np.trace(np.cov(second.T)) - 2 * covariance_term)


def random_shift(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Shift each image by up to one pixel per axis; real and generated images alike (Zhao et al. 2020)."""
    side = images.shape[2]
    padded = pad(images, (1, 1, 1, 1))
    corners = rng.integers(0, 3, (len(images), 2))
    return torch.stack([image[:, y : y + side, x : x + side] for image, (y, x) in zip(padded, corners, strict=True)])
