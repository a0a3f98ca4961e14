"""Checks of families with a single forward pass."""

from __future__ import annotations

import numpy as np

from headwaiter.package.manifest import Parity, padded_length
from headwaiter_export.arrays import Arrays
from headwaiter_export.families.single_pass import SinglePassFamily
from headwaiter_export.validation.parity import PARITY_GRID, SINGLE_ROW, TOP_ANSWERS, Differences
from headwaiter_export.validation.runtime import Runtime

_ANSWER_ROWS = 32  # number of rows on which the top answers of precisions are compared


class SinglePassChecks:
    """Compares outputs with the original model, and batched with single rows, over a grid of batch sizes × lengths."""

    def __init__(self, family: SinglePassFamily) -> None:
        self.family = family

    def check_parity(self, runtime: Runtime) -> Parity:
        rng = np.random.default_rng(0)
        differences, output_ranges = Differences(), self.family.output_ranges
        for rows, length in PARITY_GRID:
            feeds = self.family.sample_inputs(rows, length, rng)
            outputs, single_rows = runtime.run("model", feeds), _run_single_rows(runtime, feeds, rows)
            for name, expected in self.family.reference(feeds).items():
                differences.add("logits", outputs[name], expected, output_ranges.get(name))
                differences.add("batched", single_rows[name], outputs[name], output_ranges.get(name))
        return differences.parity()

    def sample_outputs(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        rows, length = PARITY_GRID[-1]
        feeds = self.family.sample_inputs(rows, length, rng)
        outputs = runtime.run("model", feeds)
        single_rows = {f"{name}{SINGLE_ROW}": value for name, value in _run_single_rows(runtime, feeds, rows).items()}
        return outputs | single_rows | self._sample_answers(runtime, length, rng)

    def _sample_answers(self, runtime: Runtime, length: int, rng: np.random.Generator) -> Arrays:
        """Return the class with the highest score per row, or per box of a detector; nothing without scores."""
        if "scores" not in self.family.outputs():
            return {}
        feeds = self.family.sample_inputs(_ANSWER_ROWS, length, rng)
        return {TOP_ANSWERS: runtime.run("model", feeds)["scores"].argmax(-1)}


def _run_single_rows(runtime: Runtime, feeds: Arrays, rows: int) -> Arrays:
    single = [runtime.run("model", _select_row(feeds, index)) for index in range(rows)]
    return {name: np.concatenate([row[name] for row in single]) for name in single[0]}


def _select_row(feeds: Arrays, index: int) -> Arrays:
    """Return one row as a batch, without the padding to longer rows."""
    single = {name: value[index : index + 1] for name, value in feeds.items()}
    if "lengths" in single:
        length = padded_length(int(single["lengths"][0]))
        single |= {name: single[name][:, :length] for name in ("tokens", "segments") if name in single}
    return single
