"""Digits, with a teacher beside the answers: hard distillation, after Touvron et al. 2020."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.zoo.data.digits import Digits
from export.zoo.model import Pupil

_TEACHER_SEED = 7
_LESSONS, _BATCH, _RATE = 200, 64, 3e-3


class TaughtDigits(Digits):
    """Of a pupil's two answers, the first learns the truth, the second what the teacher says."""

    name = "taught-digits"
    learners = (Pupil,)

    @cached_property
    def teacher(self) -> nn.Module:
        """A small convolutional network, trained at first use and the same every time."""
        teacher = _untaught(self.sizes()["image"])
        optimiser = torch.optim.AdamW(teacher.parameters(), lr=_RATE)
        for lesson in range(_LESSONS):
            pixels, answers = self.draw(np.random.default_rng((_TEACHER_SEED, lesson)), _BATCH)
            with torch.enable_grad():  # whoever asks for the teacher may be past learning
                loss = functional.cross_entropy(teacher(pixels), answers)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return teacher.eval()

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        pixels, truth = self.draw(rng, batch)
        with torch.no_grad():
            said = self.teacher(pixels).argmax(1)
        own, taught = model.answers(pixels)
        return (functional.cross_entropy(own, truth) + functional.cross_entropy(taught, said)) / 2


def _untaught(image: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(_TEACHER_SEED)
        return nn.Sequential(
            *_narrowing(3, 16), *_narrowing(16, 32), nn.Flatten(1), nn.Linear(32 * (image // 4) ** 2, 10)
        )


def _narrowing(given: int, made: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(given, made, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
