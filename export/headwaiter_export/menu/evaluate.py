"""Evaluates built-in models as they are served: exported, opened in process, on held-out data."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from headwaiter import open_model
from headwaiter.package.manifest import Precision
from headwaiter_export.menu.evaluators import EVALUATORS
from headwaiter_export.menu.results import Metrics, MetricsByPrecision
from headwaiter_export.pipeline import ExportRequest, export

_PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


def evaluate(name: str, max_examples: int | None = None) -> MetricsByPrecision:
    """Evaluate a model of the menu in both precisions, on at most `max_examples` examples."""
    return {precision: evaluate_source(name, name, precision, max_examples) for precision in _PRECISIONS}


def evaluate_source(name: str, source: str, precision: Precision, max_examples: int | None = None) -> Metrics:
    """Export `source` as the model `name` and evaluate the package."""
    with TemporaryDirectory() as out:
        package = export(ExportRequest(source, name=name, precision=precision, out=Path(out)))
        with open_model(package.folder) as served:
            metrics = EVALUATORS[name](served, max_examples)
        sizes = {"parameters": package.manifest.parameters, "package size in MB": package.size() / 1e6}
    return {metric: round(value, 4) for metric, value in {**metrics, **sizes}.items()}
