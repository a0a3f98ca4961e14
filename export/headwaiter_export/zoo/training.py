"""Training loop with checkpoints and resumption. All randomness is derived from the seed and the step."""

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

from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.checkpoint import Checkpoint
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batches import VALIDATION_SEED
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import Architecture

_STATE_FILE = "training.safetensors"
_WARMUP_FRACTION = 0.05  # fraction of the steps
_MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a training run; a run with the same seed and number of steps resumes from it."""

    seed: int
    steps: int
    done: int
    loss: float
    seconds: float  # wall time of training, without interruptions
    cpu_seconds: float = 0.0  # CPU time of training
    metric: float | None = None  # at the last validation
    best: float | None = None  # best validation metric so far


ProgressCallback = Callable[[Progress], None]
Initializer = Callable[[nn.Module], None]
"""Modifies a newly built model before training."""


def train(
    architecture: Architecture,
    folder: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    save_every: int = 200,
    on_progress: ProgressCallback | None = None,
    initialize: Initializer | None = None,
) -> tuple[Dataset, Progress]:
    """Train into `folder` and return the dataset, for evaluation, and the final progress. Resumes a run found in
    `folder`; raises `SourceError` if that run used another architecture, seed or recipe."""
    recipe = replace(architecture.recipe, steps=steps or architecture.recipe.steps)
    data, steps = recipe.data(**recipe.options), recipe.steps
    torch.manual_seed(seed)
    model = architecture.model(architecture.sizes(data))
    if initialize is not None:
        initialize(model)
    preprocessing = data.preprocessing(folder)
    optimizer = torch.optim.AdamW(
        data.parameter_groups(model), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    progress = _resume(
        folder, replace(architecture, recipe=recipe), model, optimizer, Progress(seed, steps, 0, 0.0, 0.0)
    )
    start_time, start_cpu_time = time.monotonic() - progress.seconds, time.process_time() - progress.cpu_seconds
    model.train()
    for step in range(progress.done, steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _learning_rate_factor(step / steps)
        torch.manual_seed(hash((seed, step)))
        loss = data.loss(model, np.random.default_rng((seed, step)), recipe.batch_size) + model.extra_loss()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRADIENT_NORM)
        optimizer.step()
        value = loss.item()
        average = value if step == 0 else 0.95 * progress.loss + 0.05 * value
        seconds, cpu_seconds = time.monotonic() - start_time, time.process_time() - start_cpu_time
        progress = replace(progress, done=step + 1, loss=average, seconds=seconds, cpu_seconds=cpu_seconds)
        if progress.done % save_every == 0 or progress.done == steps:
            model_to_save = data.model_to_save(model)
            if on_progress is not None or data.keep_best:
                progress = _validate(data, model_to_save, progress)
            if not data.keep_best or progress.metric == progress.best:
                Checkpoint(model_to_save, preprocessing, data.labels(), data.decoding()).save(folder)
            _save_state(folder, model, optimizer, progress, recipe)
        if on_progress is not None:
            on_progress(progress)
    return data, progress


@torch.no_grad()
def _validate(data: Dataset, model: nn.Module, progress: Progress) -> Progress:
    model.eval()
    metric = data.validate(model, np.random.default_rng(VALIDATION_SEED))
    model.train()
    candidates = [value for value in (progress.best, metric) if value is not None]
    select_best = max if data.higher_is_better else min
    return replace(progress, metric=metric, best=select_best(candidates, default=None))


def _learning_rate_factor(fraction: float) -> float:
    """Linear warm-up followed by cosine decay to 1 %; `fraction` is the completed part of the training."""
    if fraction < _WARMUP_FRACTION:
        return fraction / _WARMUP_FRACTION + 1e-3
    return 0.01 + 0.99 * 0.5 * (1 + float(np.cos(np.pi * (fraction - _WARMUP_FRACTION) / (1 - _WARMUP_FRACTION))))


def _save_state(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, recipe: Recipe
) -> None:
    """Write everything that resuming needs to one file, atomically."""
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    moments = {
        f"optimiser.{index}.{name}": value if value.ndim else value.reshape(1)
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }
    staged = folder / f"{_STATE_FILE}.new"
    tensors = {name: value.contiguous() for name, value in (weights | moments).items()}
    save_file(tensors, staged, {"progress": json.dumps(asdict(progress)), "recipe": json.dumps(recipe.to_dict())})
    staged.replace(folder / _STATE_FILE)


def _resume(
    folder: Path, architecture: Architecture, model: nn.Module, optimizer: torch.optim.Optimizer, requested: Progress
) -> Progress:
    """Load the run in `folder` into the model and the optimizer and return its progress, or `requested` if there is
    none."""
    file = folder / _STATE_FILE
    if not file.is_file():
        return requested
    with safe_open(file, "pt") as state_file:
        progress = Progress(**json.loads(state_file.metadata()["progress"]))
        recipe = json.loads(state_file.metadata().get("recipe", "{}"))
        tensors = {name: state_file.get_tensor(name) for name in state_file.keys()}  # noqa: SIM118
    name_in_folder = json.loads((folder / "config.json").read_text(encoding="utf-8"))["system"]
    if (name_in_folder, progress.seed, recipe) != (
        architecture.name,
        requested.seed,
        json.loads(json.dumps(architecture.recipe.to_dict())),
    ):
        raise SourceError(
            f"{folder} has a training run with other settings ({name_in_folder} on {recipe.get('data', 'other data')}, "
            f"seed {progress.seed}, {progress.steps} steps); choose another directory or remove this one."
        )
    model.load_state_dict(_strip_prefix("model.", tensors))
    state: dict[int, dict[str, Any]] = {}
    for name, value in _strip_prefix("optimiser.", tensors).items():
        index, part = name.split(".", 1)
        state.setdefault(int(index), {})[part] = value.squeeze() if part == "step" else value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return progress


def _strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
