"""Measures the models of the house as they are served: exported, opened in process, on what was held out."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from export.menu.measures import MEASURES
from export.menu.results import Measured, Numbers
from export.pipeline import Order, export
from service import open_model
from service.package import Precision

_PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


def evaluate(name: str, most: int | None = None) -> Measured:
    """A model of the menu in both precisions; with `most`, on no more than so many examples."""
    return {precision: measured(name, name, precision, most) for precision in _PRECISIONS}


def measured(name: str, source: str, precision: Precision, most: int | None = None) -> Numbers:
    """Weights that are those of the model, or could become them."""
    with TemporaryDirectory() as out:
        package = export(Order(source, name=name, precision=precision, out=Path(out)))
        with open_model(package.folder) as served:
            found = MEASURES[name](served, most)
        sizes = {"parameters": package.manifest.parameters, "megabytes of the package": package.size() / 1e6}
    return {number: round(value, 4) for number, value in {**found, **sizes}.items()}
