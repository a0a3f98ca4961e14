"""Results of training runs, measured on held-out data through the exported package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headwaiter import open_model
from headwaiter_export.pipeline import ExportRequest, export
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import Architecture
from headwaiter_export.zoo.training import Progress, ProgressCallback, train

_FILE = "training_result.json"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    architecture: str
    metric: str
    value: float
    target: float | None
    higher_is_better: bool
    seconds: float  # wall time of training
    cpu_seconds: float | None  # CPU time of training; None in the oldest results
    parameters: int
    fused: str  # fused attention operators of all, for example 2/2
    seed: int
    date: str  # of the evaluation, in UTC
    recipe: dict[str, Any]  # `Recipe.to_dict()` of the run

    @property
    def target_reached(self) -> bool | None:
        """None if the recipe has no target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.higher_is_better else self.value <= self.target

    def matches_recipe(self, recipe: Recipe) -> bool:
        return self.recipe == json.loads(json.dumps(recipe.to_dict()))


def train_and_evaluate(
    architecture: Architecture,
    folder: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    on_progress: ProgressCallback | None = None,
) -> TrainingResult:
    """Train, export and evaluate; the result is also written to the checkpoint directory."""
    data, progress = train(architecture, folder, seed=seed, steps=steps, on_progress=on_progress)
    training_result = evaluate_checkpoint(architecture, folder, data, progress)
    (folder / _FILE).write_text(json.dumps(asdict(training_result), indent=2), encoding="utf-8")
    return training_result


def evaluate_checkpoint(
    architecture: Architecture, folder: Path, data: Dataset, progress: Progress, max_examples: int | None = None
) -> TrainingResult:
    with TemporaryDirectory() as out:
        package = export(ExportRequest(str(folder), name=architecture.name, out=Path(out)))
        with open_model(package.folder) as served:
            value = data.evaluate(served, max_examples)
    manifest = package.manifest
    return TrainingResult(
        architecture=architecture.name,
        metric=data.metric,
        value=round(value, 4),
        target=architecture.recipe.target,
        higher_is_better=data.higher_is_better,
        seconds=round(progress.seconds, 1),
        cpu_seconds=round(progress.cpu_seconds, 1),
        parameters=manifest.parameters,
        fused=f"{manifest.fused.fused}/{manifest.fused.attention}",
        seed=progress.seed,
        date=datetime.now(UTC).date().isoformat(),
        recipe={**architecture.recipe.to_dict(), "steps": progress.steps},
    )


def load_result(folder: Path) -> TrainingResult | None:
    """Read the result in a checkpoint directory, or None if there is none."""
    file = folder / _FILE
    return TrainingResult(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
