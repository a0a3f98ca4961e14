"""Learning: steps, checkpoints, and going on where it stopped. Everything drawn follows from the seed and the step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from export.errors import SourceError
from export.zoo.checkpoint import Checkpoint
from export.zoo.data.base import Data
from export.zoo.data.batches import GLIMPSED_SEED
from export.zoo.recipe import Recipe
from export.zoo.registry import System

_TRAINING = "training.safetensors"
_WARM_UP = 0.05  # of the steps
_CLIPPED = 1.0  # norm of a gradient


@dataclass(frozen=True, slots=True)
class Progress:
    """Of a training; with the same seed and steps, it goes on from there."""

    seed: int
    steps: int
    done: int
    loss: float
    seconds: float  # of all that was done, interruptions left out
    processor: float = 0.0  # seconds that it took of processors: what else they did does not count
    metric: float | None = None  # at the last glimpse
    best: float | None = None  # of all glimpses


Watch = Callable[[Progress], None]
Begin = Callable[[nn.Module], None]
"""Changes a new model before it learns."""


def train(
    system: System,
    folder: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    save_every: int = 200,
    watch: Watch | None = None,
    begin: Begin | None = None,
) -> tuple[Data, Progress]:
    """Trains into the folder and returns the data, for measuring. What is there already is taken up again."""
    recipe = replace(system.recipe, steps=steps or system.recipe.steps)
    data, steps = recipe.data(**recipe.options), recipe.steps
    torch.manual_seed(seed)
    model = system.model(system.sizes(data))
    if begin is not None:
        begin(model)
    preprocessing = data.preprocessing(folder)
    optimiser = torch.optim.AdamW(data.optimised(model), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
    progress = _resume(folder, replace(system, recipe=recipe), model, optimiser, Progress(seed, steps, 0, 0.0, 0.0))
    began, worked = time.monotonic() - progress.seconds, time.process_time() - progress.processor
    model.train()
    for step in range(progress.done, steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * _warmth(step / steps)
        torch.manual_seed(hash((seed, step)))
        loss = data.loss(model, np.random.default_rng((seed, step)), recipe.batch) + model.extra_loss()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIPPED)
        optimiser.step()
        value = loss.item()
        average = value if step == 0 else 0.95 * progress.loss + 0.05 * value
        seconds, processor = time.monotonic() - began, time.process_time() - worked
        progress = replace(progress, done=step + 1, loss=average, seconds=seconds, processor=processor)
        if progress.done % save_every == 0 or progress.done == steps:
            learned = data.learned(model)
            if watch is not None or data.keeps_best:
                progress = _glimpsed(data, learned, progress)
            if not data.keeps_best or progress.metric == progress.best:
                Checkpoint(learned, preprocessing, data.labels(), data.decoding()).save(folder)
            _keep(folder, model, optimiser, progress, recipe)
        if watch is not None:
            watch(progress)
    return data, progress


@torch.no_grad()
def _glimpsed(data: Data, model: nn.Module, progress: Progress) -> Progress:
    model.eval()
    metric = data.glimpse(model, np.random.default_rng(GLIMPSED_SEED))
    model.train()
    known = [each for each in (progress.best, metric) if each is not None]
    best = max if data.higher_is_better else min
    return replace(progress, metric=metric, best=best(known, default=None))


def _warmth(share: float) -> float:
    """The rate rises for a moment, then falls along a cosine to a hundredth."""
    if share < _WARM_UP:
        return share / _WARM_UP + 1e-3
    return 0.01 + 0.99 * 0.5 * (1 + float(np.cos(np.pi * (share - _WARM_UP) / (1 - _WARM_UP))))


def _keep(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress, recipe: Recipe) -> None:
    """All that going on needs, in one file that is there whole or not at all."""
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    moments = {
        f"optimiser.{index}.{name}": value if value.ndim else value.reshape(1)
        for index, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }
    whole = folder / f"{_TRAINING}.new"
    tensors = {name: value.contiguous() for name, value in (weights | moments).items()}
    save_file(tensors, whole, {"progress": json.dumps(asdict(progress)), "recipe": json.dumps(recipe.stated())})
    whole.replace(folder / _TRAINING)


def _resume(
    folder: Path, system: System, model: nn.Module, optimiser: torch.optim.Optimizer, wanted: Progress
) -> Progress:
    """How far the training in the folder is; the model and the optimiser are as they were then."""
    file = folder / _TRAINING
    if not file.is_file():
        return wanted
    with safe_open(file, "pt") as kept:
        progress = Progress(**json.loads(kept.metadata()["progress"]))
        recipe = json.loads(kept.metadata().get("recipe", "{}"))
        tensors = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))["system"]
    if (found, progress.seed, recipe) != (system.name, wanted.seed, json.loads(json.dumps(system.recipe.stated()))):
        raise SourceError(
            f"{folder} holds {found} trained on {recipe.get('data', 'other data')} with seed {progress.seed} for "
            f"{progress.steps} steps, not by the recipe asked for; give another folder, or remove this one."
        )
    model.load_state_dict(_below("model.", tensors))
    state: dict[int, dict[str, Any]] = {}
    for name, value in _below("optimiser.", tensors).items():
        index, part = name.split(".", 1)
        state.setdefault(int(index), {})[part] = value.squeeze() if part == "step" else value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    return progress


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
