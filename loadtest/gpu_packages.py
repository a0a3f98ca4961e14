"""`python -m loadtest.gpu_packages`: export the models that `make gpu-smoke` serves, in fp16 and fp32.

Runs in the development environment because the export needs torch; the smoke test runs without torch. The menu has no
text generation model, so a small zoo model is trained for a few seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CHECKPOINTS = Path("build/gpu-smoke")
PACKAGES = CHECKPOINTS / "packages.json"
PRECISIONS = ("fp16", "fp32")
_GENERATOR, _GENERATOR_STEPS = "gpt2", 300


@dataclass(frozen=True, slots=True)
class GpuPackages:
    """Package directories by model and precision."""

    models: dict[str, dict[str, str]]

    @classmethod
    def load(cls, file: Path) -> GpuPackages:
        return cls(json.loads(file.read_text(encoding="utf-8")))

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.models, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A model and the source that `headwaiter export` reads it from."""

    name: str
    version: str
    source: str

    def package(self, precision: str, models: Path = Path("models")) -> Path:
        """Return the package directory; export the package if it does not exist."""
        folder = models / self.name / self.version / precision
        if not (folder / "manifest.json").is_file():
            options = {"--name": self.name, "--version": self.version, "--precision": precision, "--out": str(models)}
            arguments = [argument for option in options.items() for argument in option]
            subprocess.run(
                [Path(sys.executable).with_name("headwaiter"), "export", self.source, *arguments], check=True
            )
        return folder.resolve()


def exported_models() -> list[ExportedModel]:
    from headwaiter_export.menu import menu

    models = [ExportedModel(entry.name, entry.version, entry.name) for entry in menu().values()]
    return [*models, generator(CHECKPOINTS)]


def generator(checkpoints: Path, steps: int = _GENERATOR_STEPS) -> ExportedModel:
    """Train a text generation model; a finished checkpoint is not trained again."""
    from headwaiter_export.zoo.registry import find_architecture
    from headwaiter_export.zoo.training import train

    train(find_architecture(_GENERATOR), checkpoints / _GENERATOR, steps=steps)
    return ExportedModel(f"{_GENERATOR}-copying", "1", str(checkpoints / _GENERATOR))


def main() -> None:
    models = {
        model.name: {precision: str(model.package(precision)) for precision in PRECISIONS}
        for model in exported_models()
    }
    GpuPackages(models).save(PACKAGES)


if __name__ == "__main__":
    main()
