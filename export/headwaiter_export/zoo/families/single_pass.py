"""Export families of models that run in a single forward pass."""

from __future__ import annotations

from torch import Tensor

from headwaiter_export.families import single_pass
from headwaiter_export.zoo.families.base import ZooFamily


class LabeledFamily(ZooFamily):
    def labels(self) -> tuple[str, ...]:
        return self.checkpoint.labels or tuple(str(index) for index in range(self.config.classes))


class TextClassifier(LabeledFamily, single_pass.TextClassifier):
    def vocabulary(self) -> int:
        return int(self.config.vocabulary)

    def pad(self) -> int:
        return 0

    def limits(self) -> dict[str, int]:
        return {"length": self.config.length}

    def multi_label(self) -> bool:
        return False

    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {"scores": self.model(inputs["tokens"], inputs["lengths"])}


class ImageClassifier(LabeledFamily, single_pass.ImageClassifier):
    def image_size(self) -> tuple[int, int]:
        return self.config.image, self.config.image

    def multi_label(self) -> bool:
        return False

    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {"scores": self.model(inputs["pixels"])}


class Detector(LabeledFamily, single_pass.Detector):
    num_queries_attribute = "queries"

    def image_size(self) -> tuple[int, int]:
        return self.config.image, self.config.image

    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        scores, boxes = self.model(inputs["pixels"])
        return {"scores": scores, "boxes": boxes}
