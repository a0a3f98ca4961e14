"""Learning: steps, checkpoints, and going on where it stopped. Everything drawn follows from the seed and the step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from export.errors import SourceError
from export.zoo.checkpoint import Checkpoint, read_checkpoint
from export.zoo.data.base import Data
from export.zoo.registry import System

_PROGRESS, _MOMENTS = "progress.json", "optimiser.safetensors"
_WARM_UP = 0.05  # of the steps
_CLIPPED = 1.0  # norm of a gradient


@dataclass(frozen=True, slots=True)
class Progress:
    """Beside a checkpoint that is being trained; with the same seed and steps, training goes on from it."""

    seed: int
    steps: int
    done: int
    loss: float


Watch = Callable[[Progress], None]


def train(
    system: System,
    folder: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    save_every: int = 200,
    watch: Watch | None = None,
) -> Data:
    """Trains into the folder and returns the data, for measuring. What is there already is taken up again."""
    recipe, data = system.recipe, system.recipe.data(**system.recipe.options)
    steps = steps or recipe.steps
    torch.manual_seed(seed)
    model = system.model(system.sizes(data))
    preprocessing = data.preprocessing(folder)
    optimiser = torch.optim.AdamW(data.optimised(model), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
    done, average = _resume(folder, system, model, optimiser, seed, steps)
    model.train()
    for step in range(done, steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * _warmth(step / steps)
        torch.manual_seed(hash((seed, step)))
        loss = data.loss(model, np.random.default_rng((seed, step)), recipe.batch) + model.extra_loss()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIPPED)
        optimiser.step()
        average = float(loss) if step == 0 else 0.95 * average + 0.05 * float(loss)
        progress = Progress(seed, steps, step + 1, average)
        if progress.done % save_every == 0 or progress.done == steps:
            checkpoint = Checkpoint(model, preprocessing, data.labels(), data.decoding())
            _save(folder, checkpoint, optimiser, progress)
        if watch is not None:
            watch(progress)
    return data


def _warmth(share: float) -> float:
    """The rate rises for a moment, then falls along a cosine to a hundredth."""
    if share < _WARM_UP:
        return share / _WARM_UP + 1e-3
    return 0.01 + 0.99 * 0.5 * (1 + float(np.cos(np.pi * (share - _WARM_UP) / (1 - _WARM_UP))))


def _save(folder: Path, checkpoint: Checkpoint, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
    """The progress last: without it, the rest is not taken up."""
    checkpoint.save(folder)
    moments = {
        f"{index}.{name}": value.contiguous() if value.ndim else value.reshape(1)
        for index, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }
    save_file(moments, folder / _MOMENTS)
    (folder / _PROGRESS).write_text(json.dumps(asdict(progress)), encoding="utf-8")


def _resume(
    folder: Path, system: System, model: nn.Module, optimiser: torch.optim.Optimizer, seed: int, steps: int
) -> tuple[int, float]:
    """How many steps were done, and the loss then; the model and the optimiser are as they were."""
    file = folder / _PROGRESS
    if not file.is_file():
        return 0, 0.0
    progress = Progress(**json.loads(file.read_text(encoding="utf-8")))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["system"] != system.name or (progress.seed, progress.steps) != (seed, steps):
        raise SourceError(
            f"{folder} holds {config['system']} trained with seed {progress.seed} for {progress.steps} steps; "
            f"give those again to go on, or another folder."
        )
    model.load_state_dict(read_checkpoint(folder, config).model.state_dict())
    state = optimiser.state_dict()
    found: dict[int, dict[str, Any]] = {}
    for name, value in load_file(folder / _MOMENTS).items():
        index, part = name.split(".", 1)
        found.setdefault(int(index), {})[part] = value.squeeze() if part == "step" else value
    optimiser.load_state_dict({**state, "state": found})
    return progress.done, progress.loss
