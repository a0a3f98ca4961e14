"""Comparison of graphs with the original model in torch, with other batch sizes and with other precisions.

Differences are fractions of the range (largest minus smallest value) of the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headwaiter.package.manifest import Parity, PrecisionLoss
from headwaiter_export.errors import ExportError
from headwaiter_export.validation.runtime import Arrays

FP32_TOLERANCE = 1e-4
PARITY_GRID = ((1, 3), (3, 12), (5, 29))  # (rows, length)
GREEDY_STEPS = 40
SINGLE_ROW = ":single_row"  # suffix of sample outputs with each row run as its own batch


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
    tokens: str | None = None
    for name, reference in expected.items():
        if name == "tokens":
            tokens = f"{int((actual[name] == reference).sum())}/{reference.size}"
        elif name.endswith(SINGLE_ROW):
            output = name.removesuffix(SINGLE_ROW)
            batched.append(relative_difference(actual[name], actual[output], output_ranges.get(output)))
        else:
            errors.append(_relative_rms_error(actual[name], reference, output_ranges.get(name)))
    loss = PrecisionLoss(logits=max(errors), tokens=tokens, batched=max(batched, default=0.0))
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


def pad_rows(rows: Iterable[Sequence[int]], fill: int = 0) -> np.ndarray:
    """Return token sequences as one array, padded on the right."""
    rows = list(rows)
    batch = np.full((len(rows), max(len(row) for row in rows)), fill, np.int64)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = row
    return batch


def ragged_lengths(rows: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Return random lengths, at least one of which is `longest`."""
    lengths = rng.integers(max(1, longest // 3), longest + 1, rows)
    lengths[rng.integers(rows)] = longest
    return lengths.astype(np.int32)
