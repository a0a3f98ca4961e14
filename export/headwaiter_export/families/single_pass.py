"""Families with a single forward pass: one graph `model`, from text or pixels to scores."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from headwaiter.package.manifest import padded_length
from headwaiter_export.arrays import Arrays, ragged_lengths
from headwaiter_export.families.family import Family
from headwaiter_export.tracing.attention import TraceContext, use_trace_context
from headwaiter_export.tracing.graph import GraphSpec, TensorSpec


class SinglePassFamily(Family):
    """Subclasses define the inputs, the outputs and how the original model is called."""

    @abstractmethod
    def inputs(self) -> dict[str, TensorSpec]: ...

    @abstractmethod
    def outputs(self) -> dict[str, TensorSpec]: ...

    @abstractmethod
    def sample_inputs(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        """Return random inputs for a number of rows. `length` is the longest text, or selects the image size."""

    @abstractmethod
    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:
        """Run the original model. `mask` [rows, length] marks the unpadded tokens; None with fused attention."""

    def graphs(self) -> list[GraphSpec]:
        return [GraphSpec("model", _SinglePassModule(self), self.inputs(), self.outputs())]

    def reference(self, arrays: Arrays) -> Arrays:
        """Run the original model in torch."""
        inputs = {name: torch.from_numpy(value) for name, value in arrays.items()}
        with torch.no_grad():
            return {name: value.numpy() for name, value in self.run_model(inputs, _attention_mask(inputs)).items()}


class _SinglePassModule(nn.Module):
    def __init__(self, family: SinglePassFamily) -> None:
        super().__init__()
        self.model, self.family = family.model, family

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        # Fused attention takes the lengths instead of a mask.
        mask = _attention_mask(inputs) if self.family.unfused_reason else None
        with use_trace_context(TraceContext(lengths=inputs.get("lengths"))):
            outputs = self.family.run_model(inputs, mask)
        return {name: value.float() for name, value in outputs.items()}


class TextClassifier(SinglePassFamily):
    task = "classification"
    reads_text = True

    def uses_segments(self) -> bool:
        """Return whether the model takes segment ids, which mark the tokens of a second text."""
        return False

    def inputs(self) -> dict[str, TensorSpec]:
        tokens = TensorSpec(torch.int64, ("rows", "length"))
        specs = {"tokens": tokens, "lengths": TensorSpec(torch.int32, ("rows",))}
        return specs | {"segments": tokens} if self.uses_segments() else specs

    def outputs(self) -> dict[str, TensorSpec]:
        return {"scores": TensorSpec(torch.float32, ("rows", len(self.labels())))}

    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    def pad(self) -> int:
        return self.config.pad_token_id or 0

    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:
        extra = {"token_type_ids": inputs["segments"]} if self.uses_segments() else {}
        return {"scores": self.model(input_ids=inputs["tokens"], attention_mask=mask, **extra).logits}

    def sample_inputs(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        lengths = ragged_lengths(rows, min(length, self.limits()["length"]), rng)
        pad, vocabulary = self.pad(), self.vocabulary()
        tokens = rng.integers(0, vocabulary, (rows, self._padded_width(lengths)))
        tokens[tokens == pad] = (pad + 1) % vocabulary
        tokens[np.arange(tokens.shape[1])[None] >= lengths[:, None]] = pad
        feeds = {"tokens": tokens, "lengths": lengths}
        if self.uses_segments():
            feeds["segments"] = (np.arange(tokens.shape[1])[None] > lengths[:, None] // 2).astype(np.int64)
        return feeds

    def limits(self) -> dict[str, int]:
        return {"length": int(self.config.max_position_embeddings)}

    def _padded_width(self, lengths: np.ndarray) -> int:
        return min(padded_length(int(lengths.max())), self.limits()["length"])

    def labels(self) -> tuple[str, ...]:
        return label_names(self.config)

    def multi_label(self) -> bool:
        return bool(self.config.problem_type == "multi_label_classification")


class ImageModel(SinglePassFamily):
    reads_images = True

    def inputs(self) -> dict[str, TensorSpec]:
        height, width = self.image_size()
        return {"pixels": TensorSpec(torch.float32, ("rows", 3, height, width))}

    def image_size(self) -> tuple[str | int, str | int]:
        """Return height and width; a name for an axis of variable size."""
        size = self.config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return int(height), int(width)

    def sample_inputs(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        """Return random images of one size, which depends on `length` if the model takes variable sizes."""
        sizes = [
            axis if isinstance(axis, int) else 64 + 16 * (length % 7) + 32 * i
            for i, axis in enumerate(self.image_size())
        ]
        return {"pixels": rng.standard_normal((rows, 3, *sizes)).astype(np.float32)}

    def limits(self) -> dict[str, int]:
        return {
            name: size
            for name, size in zip(("height", "width"), self.image_size(), strict=True)
            if isinstance(size, int)
        }

    def labels(self) -> tuple[str, ...]:
        return label_names(self.config)


class ImageClassifier(ImageModel):
    task = "classification"

    def outputs(self) -> dict[str, TensorSpec]:
        return {"scores": TensorSpec(torch.float32, ("rows", len(self.labels())))}

    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {"scores": self.model(pixel_values=inputs["pixels"]).logits}

    def multi_label(self) -> bool:
        return bool(self.config.problem_type == "multi_label_classification")


class Detector(ImageModel):
    task = "detection"
    num_queries_attribute: ClassVar[str]  # config attribute with the number of boxes
    output_ranges: ClassVar[dict[str, float]] = {"boxes": 1.0}

    def image_size(self) -> tuple[str | int, str | int]:
        return "height", "width"

    def outputs(self) -> dict[str, TensorSpec]:
        queries = getattr(self.config, self.num_queries_attribute)
        classes = len(self.labels()) + 1  # the last class means "no object"
        return {
            "scores": TensorSpec(torch.float32, ("rows", queries, classes)),
            "boxes": TensorSpec(torch.float32, ("rows", queries, 4)),
        }

    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        outputs = self.model(pixel_values=inputs["pixels"])
        return {"scores": outputs.logits, "boxes": outputs.pred_boxes}


def _attention_mask(inputs: dict[str, Tensor]) -> Tensor | None:
    if "lengths" not in inputs:
        return None
    return (torch.arange(inputs["tokens"].shape[1])[None] < inputs["lengths"][:, None]).long()


def label_names(config: Any) -> tuple[str, ...]:
    return tuple(str(config.id2label[index]) for index in sorted(config.id2label))
