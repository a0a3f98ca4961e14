"""Compares graphs with the original in torch, and with themselves in other batches. Differences are shares of the
spread (largest minus smallest value) of what is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from export.errors import ExportError
from export.runtime import Arrays
from service.package import Loss, Parity

FP32_TOLERANCE = 1e-4
GRID = ((1, 3), (3, 12), (5, 29))  # rows × length
STEPS = 40


@dataclass(slots=True)
class Differences:
    """Collects the largest difference under each heading."""

    largest: dict[str, float] = field(default_factory=dict)
    same: int = 0
    seen: int = 0

    def add(self, heading: str, got: np.ndarray, expected: np.ndarray, spread: float | None = None) -> None:
        self.largest[heading] = max(self.largest.get(heading, 0.0), difference(got, expected, spread))

    def add_tokens(self, got: np.ndarray, expected: np.ndarray) -> None:
        self.same += int((got == expected).sum())
        self.seen += got.size

    def parity(self) -> Parity:
        return Parity(
            reference="torch fp32",
            grid=", ".join(f"{rows} × {length}" for rows, length in GRID),
            logits=self.largest["logits"],
            batched=self.largest["batched"],
            cached=self.largest.get("cached"),
            positions=self.largest.get("positions"),
            tokens=f"{self.same}/{self.seen}" if self.seen else None,
        )


def difference(got: np.ndarray, expected: np.ndarray, spread: float | None = None) -> float:
    if got.shape != expected.shape:
        raise ExportError(f"A graph answers with the shape {got.shape} where the original has {expected.shape}.")
    if not np.isfinite(got).all():
        return float("inf")
    scale = spread if spread is not None else float(expected.max() - expected.min())
    return float(np.abs(got.astype(np.float64) - expected).max()) / (scale or 1.0)


def demand(parity: Parity) -> None:
    """fp32 must give the original's answers; anything else is a bug of the export and no package."""
    for heading in ("logits", "batched", "cached", "positions"):
        value = getattr(parity, heading)
        if value is not None and not value <= FP32_TOLERANCE:
            raise ExportError(
                f"The exported graphs differ from {parity.reference} ({heading}: {value:.1e} of the spread, "
                f"at most {FP32_TOLERANCE:.0e} is allowed)."
            )
    if parity.tokens is not None:
        same, seen = parity.tokens.split("/")
        if same != seen:
            raise ExportError(f"Greedy decoding differs from {parity.reference}: {parity.tokens} tokens are the same.")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a precision may be from fp32: the root mean square of differences, as a share of the values' own."""

    error: float
    batched: float


BOUNDS = {"fp16": Bounds(error=0.02, batched=0.01), "int8": Bounds(error=0.25, batched=0.01)}


def compare_precision(precision: str, got: Arrays, expected: Arrays, ranges: Mapping[str, float]) -> Loss:
    """`got` and `expected` are trials of the same inputs: answers, and the same answers from rows run alone."""
    errors, batched = [], []
    tokens: str | None = None
    for name, reference in expected.items():
        if name == "tokens":
            tokens = f"{int((got[name] == reference).sum())}/{reference.size}"
        elif name.endswith(":alone"):
            together = name.removesuffix(":alone")
            batched.append(difference(got[name], got[together], ranges.get(together)))
        else:
            errors.append(_error(got[name], reference, ranges.get(name)))
    loss = Loss(logits=max(errors), tokens=tokens, batched=max(batched, default=0.0))
    bounds = BOUNDS[precision]
    if not (loss.logits <= bounds.error and loss.batched <= bounds.batched):
        raise ExportError(
            f"{precision} loses too much beside fp32: error {loss.logits:.2g} (at most {bounds.error}), "
            f"batched against alone {loss.batched:.2g} (at most {bounds.batched})."
        )
    return loss


def _error(got: np.ndarray, expected: np.ndarray, spread: float | None) -> float:
    if not np.isfinite(got).all():
        return float("inf")
    return float(np.sqrt(np.square(got - expected).mean())) / (spread or float(expected.std()) or 1.0)


def padded(rows: Iterable[Sequence[int]], fill: int = 0) -> np.ndarray:
    rows = list(rows)
    batch = np.full((len(rows), max(len(row) for row in rows)), fill, np.int64)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = row
    return batch


def ragged_lengths(rows: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of different lengths, one of them the longest."""
    lengths = rng.integers(max(1, longest // 3), longest + 1, rows)
    lengths[rng.integers(rows)] = longest
    return lengths.astype(np.int32)
