"""Comparison of graphs with the original model in torch, with other batch sizes and with other precisions.

Differences are fractions of the range (largest minus smallest value) of the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headwaiter.package.manifest import Parity, PrecisionLoss
from headwaiter_export.arrays import Arrays
from headwaiter_export.errors import ExportError

FP32_TOLERANCE = 1e-4
PARITY_GRID = ((1, 3), (3, 12), (5, 29))  # (rows, length)
GREEDY_STEPS = 40
SINGLE_ROW = ":single_row"  # suffix of sample outputs with each row run as its own batch
# Names of sample outputs of which the share of equal values is reported.
TOKENS = "tokens"  # most probable tokens of a text decoder
TOP_ANSWERS = "top_answers"  # most probable classes or actions of another model


@dataclass(slots=True)
class Differences:
    """Collects the largest difference of each metric."""

    largest: dict[str, float] = field(default_factory=dict)
    matching: int = 0
    compared: int = 0

    def add(self, metric: str, actual: np.ndarray, expected: np.ndarray, value_range: float | None = None) -> None:
        self.largest[metric] = max(self.largest.get(metric, 0.0), relative_difference(actual, expected, value_range))

    def add_tokens(self, actual: np.ndarray, expected: np.ndarray) -> None:
        self.matching += int((actual == expected).sum())
        self.compared += actual.size

    def parity(self) -> Parity:
        return Parity(
            reference="torch fp32",
            grid=", ".join(f"{rows} × {length}" for rows, length in PARITY_GRID),
            logits=self.largest["logits"],
            batched=self.largest["batched"],
            cached=self.largest.get("cached"),
            positions=self.largest.get("positions"),
            tokens=f"{self.matching}/{self.compared}" if self.compared else None,
        )


def relative_difference(actual: np.ndarray, expected: np.ndarray, value_range: float | None = None) -> float:
    """Return the largest difference as a fraction of `value_range` (default: the range of `expected`)."""
    if actual.shape != expected.shape:
        raise ExportError(f"A graph output has the shape {actual.shape}; the original has {expected.shape}.")
    if not np.isfinite(actual).all():
        return float("inf")
    scale = value_range if value_range is not None else float(expected.max() - expected.min())
    return float(np.abs(actual.astype(np.float64) - expected).max()) / (scale or 1.0)


def check_tolerance(parity: Parity) -> None:
    """Raise `ExportError` if the fp32 graphs differ from the original model by more than `FP32_TOLERANCE`."""
    for metric in ("logits", "batched", "cached", "positions"):
        value = getattr(parity, metric)
        if value is not None and not value <= FP32_TOLERANCE:
            raise ExportError(
                f"The exported graphs differ from {parity.reference} ({metric}: {value:.1e} of the output range; "
                f"the maximum is {FP32_TOLERANCE:.0e})."
            )
    if parity.tokens is not None:
        matching, compared = parity.tokens.split("/")
        if matching != compared:
            raise ExportError(f"Greedy decoding differs from {parity.reference}: only {parity.tokens} tokens match.")


@dataclass(frozen=True, slots=True)
class PrecisionTolerance:
    """Limits for the deviation of a precision from fp32."""

    error: float  # RMS error as a fraction of the standard deviation or range of the output
    batched: float  # difference between batched and single rows as a fraction of the output range


PRECISION_TOLERANCES = {
    "fp16": PrecisionTolerance(error=0.02, batched=0.01),
    "int8": PrecisionTolerance(error=0.25, batched=0.01),
}


def compare_precision(
    precision: str, actual: Arrays, expected: Arrays, output_ranges: Mapping[str, float]
) -> PrecisionLoss:
    """Compare the sample outputs of a precision with those of fp32. Raises `ExportError` beyond the tolerance."""
    errors, batched = [], []
    equal: dict[str, str] = {}
    for name, reference in expected.items():
        if name in (TOKENS, TOP_ANSWERS):
            equal[name] = f"{int((actual[name] == reference).sum())}/{reference.size}"
        elif name.endswith(SINGLE_ROW):
            output = name.removesuffix(SINGLE_ROW)
            batched.append(relative_difference(actual[name], actual[output], output_ranges.get(output)))
        else:
            errors.append(_relative_rms_error(actual[name], reference, output_ranges.get(name)))
    loss = PrecisionLoss(
        logits=max(errors),
        tokens=equal.get(TOKENS),
        top_answers=equal.get(TOP_ANSWERS, equal.get(TOKENS)),
        batched=max(batched, default=0.0),
    )
    tolerance = PRECISION_TOLERANCES[precision]
    if not (loss.logits <= tolerance.error and loss.batched <= tolerance.batched):
        raise ExportError(
            f"{precision} differs too much from fp32: error {loss.logits:.2g} (maximum {tolerance.error}), "
            f"batched vs. single row {loss.batched:.2g} (maximum {tolerance.batched})."
        )
    return loss


def _relative_rms_error(actual: np.ndarray, expected: np.ndarray, value_range: float | None) -> float:
    if not np.isfinite(actual).all():
        return float("inf")
    return float(np.sqrt(np.square(actual - expected).mean())) / (value_range or float(expected.std()) or 1.0)
