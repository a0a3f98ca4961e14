"""What came of a training: measured on held-out data, through the exported package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from export.pipeline import Order, export
from export.zoo.data.base import Data
from export.zoo.recipe import Recipe
from export.zoo.registry import System
from export.zoo.training import Progress, Watch, train
from service import open_model

_FILE = "outcome.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    system: str
    metric: str
    value: float
    bar: float | None
    higher_is_better: bool
    seconds: float  # of training
    processor: float | None  # of these, seconds that processors worked on it; not known of the oldest
    parameters: int
    fused: str  # attention, as in 2/2
    seed: int
    day: str  # when it was measured, in UTC
    recipe: dict[str, Any]  # as it was then

    @property
    def reached(self) -> bool | None:
        """None where there is no bar."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.higher_is_better else self.value <= self.bar

    def is_by(self, recipe: Recipe) -> bool:
        return self.recipe == json.loads(json.dumps(recipe.stated()))


def achieve(
    system: System, folder: Path, *, seed: int = 0, steps: int | None = None, watch: Watch | None = None
) -> Outcome:
    """Trains, exports and measures; what was achieved is kept beside the checkpoint."""
    data, progress = train(system, folder, seed=seed, steps=steps, watch=watch)
    outcome = measured(system, folder, data, progress)
    (folder / _FILE).write_text(json.dumps(asdict(outcome), indent=2), encoding="utf-8")
    return outcome


def measured(system: System, folder: Path, data: Data, progress: Progress, most: int | None = None) -> Outcome:
    with TemporaryDirectory() as out:
        package = export(Order(str(folder), name=system.name, out=Path(out)))
        with open_model(package.folder) as served:
            value = data.measure(served, most)
    manifest = package.manifest
    return Outcome(
        system=system.name,
        metric=data.metric,
        value=round(value, 4),
        bar=system.recipe.bar,
        higher_is_better=data.higher_is_better,
        seconds=round(progress.seconds, 1),
        processor=round(progress.processor, 1),
        parameters=manifest.parameters,
        fused=f"{manifest.fused.fused}/{manifest.fused.attention}",
        seed=progress.seed,
        day=datetime.now(UTC).date().isoformat(),
        recipe={**system.recipe.stated(), "steps": progress.steps},
    )


def kept(folder: Path) -> Outcome | None:
    """What was achieved in the folder before."""
    file = folder / _FILE
    return Outcome(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
