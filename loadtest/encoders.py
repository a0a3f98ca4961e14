"""Encoder models beside a bare session, OpenVINO and torch: the same preprocessed arrays in, scores out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtest.contest import Taken
from loadtest.part import Options, Part, Stage
from loadtest.rows import EncoderRow, Row
from loadtest.untrained import BERT, VIT

_BARE = "onnxruntime fp32"


class Encoders(Part):
    name = "encoders"
    what = "ViT-B/16 (224², 1000 classes) and BERT-base (8 to 128 tokens, 2 labels), random weights"
    module = "loadtest.classifiers"
    contestants = (
        "headwaiter fp32",
        "headwaiter int8",
        "onnxruntime fp32",
        "onnxruntime int8",
        "openvino fp32",
        "torch fp32",
    )
    models = (VIT, BERT)
    row = EncoderRow

    def stages(self, options: Options) -> list[Stage]:  # noqa: ARG002
        return [
            Stage("ViT-B/16", "16 images", {"model": VIT.name, "items": 16}, 3.8, 95.0),
            Stage("BERT-base", "96 texts", {"model": BERT.name, "items": 96}, 4.6, 80.0),
        ]

    def rows(self, stage: Stage, taken: Sequence[Taken], when: str) -> list[Row]:
        scores = {each.contestant: np.array(each.answers[-1]) for each in taken}
        return [
            EncoderRow(
                contestant=each.contestant,
                settings=each.settings,
                rounds=len(each.seconds),
                spread=each.spread,
                when=when,
                model=stage.task["model"],
                items=stage.task["items"],
                items_per_second=stage.task["items"] / each.median,
                difference=difference(scores[each.contestant], scores[_BARE]) if _BARE in scores else None,
            )
            for each in taken
        ]


def difference(scores: np.ndarray, reference: np.ndarray) -> float:
    """The largest, as a share of the reference's spread."""
    return float(np.abs(scores - reference).max() / (reference.max() - reference.min()))
