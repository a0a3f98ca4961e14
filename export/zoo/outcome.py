"""What came of a training: measured on held-out data, through the exported package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from export.pipeline import Order, export
from export.zoo.data.base import Data
from export.zoo.registry import System
from export.zoo.training import Watch, train
from service import open_model

_FILE = "outcome.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    system: str
    metric: str
    value: float
    bar: float
    higher_is_better: bool
    seconds: float  # of training
    parameters: int
    fused: str  # attention, as in 2/2

    @property
    def reached(self) -> bool:
        return self.value >= self.bar if self.higher_is_better else self.value <= self.bar


def achieve(
    system: System, folder: Path, *, seed: int = 0, steps: int | None = None, watch: Watch | None = None
) -> Outcome:
    """Trains, exports and measures; what was achieved is kept beside the checkpoint."""
    data, progress = train(system, folder, seed=seed, steps=steps, watch=watch)
    outcome = measured(system, folder, data, progress.seconds)
    (folder / _FILE).write_text(json.dumps(asdict(outcome), indent=2), encoding="utf-8")
    return outcome


def measured(system: System, folder: Path, data: Data, seconds: float, most: int | None = None) -> Outcome:
    with TemporaryDirectory() as out:
        package = export(Order(str(folder), name=system.name, out=Path(out)))
        with open_model(package.folder) as served:
            value = data.measure(served, most)
    manifest = package.manifest
    return Outcome(
        system.name,
        data.metric,
        round(value, 4),
        system.recipe.bar,
        data.higher_is_better,
        round(seconds, 1),
        manifest.parameters,
        f"{manifest.fused.fused}/{manifest.fused.attention}",
    )


def kept(system: System, folder: Path) -> Outcome | None:
    """What was achieved before, beside the bar of today."""
    file = folder / _FILE
    if not file.is_file():
        return None
    return Outcome(**{**json.loads(file.read_text(encoding="utf-8")), "bar": system.recipe.bar})
