"""Systems that answer in one pass."""

from __future__ import annotations

from torch import Tensor

from export import onepass
from export.zoo.families.base import OfZoo


class Labelled(OfZoo):
    def labels(self) -> tuple[str, ...]:
        return self.checkpoint.labels or tuple(str(index) for index in range(self.config.classes))


class TextClassifier(Labelled, onepass.TextClassifier):
    def vocabulary(self) -> int:
        return int(self.config.vocabulary)

    def pad(self) -> int:
        return 0

    def limits(self) -> dict[str, int]:
        return {"length": self.config.length}

    def multi_label(self) -> bool:
        return False

    def call(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {"scores": self.model(inputs["tokens"], inputs["lengths"])}


class ImageClassifier(Labelled, onepass.ImageClassifier):
    def image_size(self) -> tuple[int, int]:
        return self.config.image, self.config.image

    def multi_label(self) -> bool:
        return False

    def call(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {"scores": self.model(inputs["pixels"])}


class Detector(Labelled, onepass.Detector):
    queries = "queries"

    def image_size(self) -> tuple[int, int]:
        return self.config.image, self.config.image

    def call(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        scores, boxes = self.model(inputs["pixels"])
        return {"scores": scores, "boxes": boxes}
