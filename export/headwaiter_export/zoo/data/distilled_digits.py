"""Digits with hard distillation from a teacher (Touvron et al. 2020)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwaiter_export.zoo.data.digits import Digits
from headwaiter_export.zoo.model import DistilledImageClassifier

_TEACHER_SEED = 7
_TEACHER_STEPS, _TEACHER_BATCH_SIZE, _LEARNING_RATE = 200, 64, 3e-3


class DistilledDigits(Digits):
    """The class head is trained on the labels, the distillation head on the predictions of the teacher."""

    name = "distilled-digits"
    compatible_models = (DistilledImageClassifier,)

    @cached_property
    def teacher(self) -> nn.Module:
        """A small convolutional network, trained deterministically on first use."""
        teacher = _build_teacher(self.sizes()["image"])
        optimizer = torch.optim.AdamW(teacher.parameters(), lr=_LEARNING_RATE)
        for step in range(_TEACHER_STEPS):
            pixels, targets = self.sample_batch(np.random.default_rng((_TEACHER_SEED, step)), _TEACHER_BATCH_SIZE)
            with torch.enable_grad():  # callers may have disabled gradients
                loss = functional.cross_entropy(teacher(pixels), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return teacher.eval()

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        pixels, targets = self.sample_batch(rng, batch_size)
        with torch.no_grad():
            teacher_targets = self.teacher(pixels).argmax(1)
        class_scores, distillation_scores = model.class_and_distillation_scores(pixels)
        return (
            functional.cross_entropy(class_scores, targets)
            + functional.cross_entropy(distillation_scores, teacher_targets)
        ) / 2


def _build_teacher(image: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(_TEACHER_SEED)
        return nn.Sequential(
            *_conv_block(3, 16), *_conv_block(16, 32), nn.Flatten(1), nn.Linear(32 * (image // 4) ** 2, 10)
        )


def _conv_block(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
