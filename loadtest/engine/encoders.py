"""Encoder benchmark: the engine compared with a bare ONNX Runtime session, OpenVINO and torch on the same arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtest.benchmark_process import BackendTimings
from loadtest.engine.benchmark_part import BenchmarkOptions, BenchmarkPart, Workload
from loadtest.engine.measurements import EncoderMeasurement, Measurement
from loadtest.random_models import BERT, VIT

_BARE = "onnxruntime fp32"


class Encoders(BenchmarkPart):
    name = "encoders"
    description = "ViT-B/16 (224², 1000 classes) and BERT-base (8 to 128 tokens, 2 labels), random weights"
    module = "loadtest.engine.encoder_workers"
    backends = (
        "headwaiter fp32",
        "headwaiter int8",
        "onnxruntime fp32",
        "onnxruntime int8",
        "openvino fp32",
        "torch fp32",
    )
    models = (VIT, BERT)
    row = EncoderMeasurement

    def workloads(self, options: BenchmarkOptions) -> list[Workload]:  # noqa: ARG002
        return [
            Workload("ViT-B/16", "16 images", {"model": VIT.name, "items": 16}, 3.8, 95.0),
            Workload("BERT-base", "96 texts", {"model": BERT.name, "items": 96}, 4.6, 80.0),
        ]

    def rows(self, workload: Workload, timings: Sequence[BackendTimings], when: str) -> list[Measurement]:
        scores = {timing.backend: np.array(timing.answers[-1]) for timing in timings}
        return [
            EncoderMeasurement(
                backend=timing.backend,
                settings=timing.settings,
                rounds=len(timing.seconds),
                spread=timing.spread,
                when=when,
                model=workload.task["model"],
                items=workload.task["items"],
                items_per_second=workload.task["items"] / timing.median,
                difference=difference(scores[timing.backend], scores[_BARE]) if _BARE in scores else None,
            )
            for timing in timings
        ]


def difference(scores: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest absolute difference relative to the range of the reference."""
    return float(np.abs(scores - reference).max() / (reference.max() - reference.min()))
