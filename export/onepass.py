"""Models that answer in one pass: a graph `model`, from text or pixels to scores."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from export.attention import Scene, playing
from export.family import Family
from export.graph import Graph, Port
from export.parity import GRID, Differences, ragged_lengths
from export.runtime import Arrays, Runtime
from service.package import Parity, padded_length


class OnePass(Family):
    """Subclasses say what goes in, what comes out, and how the original is called."""

    @abstractmethod
    def inputs(self) -> dict[str, Port]: ...

    @abstractmethod
    def outputs(self) -> dict[str, Port]: ...

    @abstractmethod
    def sample(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        """Made-up inputs for so many rows."""

    @abstractmethod
    def call(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:
        """The original; `mask` [rows, length] says which tokens are real, where attention is not told in our way."""

    def graphs(self) -> list[Graph]:
        return [Graph("model", _Model(self), self.inputs(), self.outputs())]

    def reference(self, arrays: Arrays) -> Arrays:
        inputs = {name: torch.from_numpy(value) for name, value in arrays.items()}
        with torch.no_grad():
            return {name: value.numpy() for name, value in self.call(inputs, _mask(inputs)).items()}

    def check(self, runtime: Runtime) -> Parity:
        rng = np.random.default_rng(0)
        found = Differences()
        for rows, length in GRID:
            feeds = self.sample(rows, length, rng)
            got, expected = runtime.run("model", feeds), self.reference(feeds)
            alone = [runtime.run("model", _alone(feeds, index)) for index in range(rows)]
            for name, value in expected.items():
                found.add("logits", got[name], value, self.ranges.get(name))
                together = np.concatenate([answer[name] for answer in alone])
                found.add("batched", together, got[name], self.ranges.get(name))
        return found.parity()

    def trial(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        rows, length = GRID[-1]
        feeds = self.sample(rows, length, rng)
        answers = runtime.run("model", feeds)
        alone = [runtime.run("model", _alone(feeds, index)) for index in range(rows)]
        return answers | {f"{name}:alone": np.concatenate([a[name] for a in alone]) for name in answers}


class _Model(nn.Module):
    def __init__(self, family: OnePass) -> None:
        super().__init__()
        self.model, self.family = family.model, family

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        mask = _mask(inputs) if self.family.cannot_fuse else None  # fused attention takes the lengths themselves
        with playing(Scene(lengths=inputs.get("lengths"))):
            outputs = self.family.call(inputs, mask)
        return {name: value.float() for name, value in outputs.items()}


class TextClassifier(OnePass):
    task = "classification"
    reads_text = True

    def segmented(self) -> bool:
        """Whether the model is told which tokens are of a second text."""
        return False

    def inputs(self) -> dict[str, Port]:
        tokens = Port(torch.int64, ("rows", "length"))
        ports = {"tokens": tokens, "lengths": Port(torch.int32, ("rows",))}
        return ports | {"segments": tokens} if self.segmented() else ports

    def outputs(self) -> dict[str, Port]:
        return {"scores": Port(torch.float32, ("rows", len(self.labels())))}

    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    def pad(self) -> int:
        return self.config.pad_token_id or 0

    def call(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:
        extra = {"token_type_ids": inputs["segments"]} if self.segmented() else {}
        return {"scores": self.model(input_ids=inputs["tokens"], attention_mask=mask, **extra).logits}

    def sample(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        lengths = ragged_lengths(rows, min(length, self.limits()["length"]), rng)
        pad, vocabulary = self.pad(), self.vocabulary()
        tokens = rng.integers(0, vocabulary, (rows, self._width(lengths)))
        tokens[tokens == pad] = (pad + 1) % vocabulary
        tokens[np.arange(tokens.shape[1])[None] >= lengths[:, None]] = pad
        feeds = {"tokens": tokens, "lengths": lengths}
        if self.segmented():
            feeds["segments"] = (np.arange(tokens.shape[1])[None] > lengths[:, None] // 2).astype(np.int64)
        return feeds

    def limits(self) -> dict[str, int]:
        return {"length": int(self.config.max_position_embeddings)}

    def _width(self, lengths: np.ndarray) -> int:
        return min(padded_length(int(lengths.max())), self.limits()["length"])

    def labels(self) -> tuple[str, ...]:
        return label_names(self.config)

    def multi_label(self) -> bool:
        return bool(self.config.problem_type == "multi_label_classification")


class ImageModel(OnePass):
    reads_images = True

    def inputs(self) -> dict[str, Port]:
        height, width = self.image_size()
        return {"pixels": Port(torch.float32, ("rows", 3, height, width))}

    def image_size(self) -> tuple[str | int, str | int]:
        size = self.config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return int(height), int(width)

    def sample(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        """Images of one size; where sizes may differ, one that depends on the length asked for."""
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

    def outputs(self) -> dict[str, Port]:
        return {"scores": Port(torch.float32, ("rows", len(self.labels())))}

    def call(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {"scores": self.model(pixel_values=inputs["pixels"]).logits}

    def multi_label(self) -> bool:
        return bool(self.config.problem_type == "multi_label_classification")


class Detector(ImageModel):
    task = "detection"
    queries: ClassVar[str]  # where the config says how many boxes come out
    ranges: ClassVar[dict[str, float]] = {"boxes": 1.0}

    def image_size(self) -> tuple[str | int, str | int]:
        return "height", "width"

    def outputs(self) -> dict[str, Port]:
        queries = getattr(self.config, self.queries)
        classes = len(self.labels()) + 1  # the last one means that there is nothing
        return {
            "scores": Port(torch.float32, ("rows", queries, classes)),
            "boxes": Port(torch.float32, ("rows", queries, 4)),
        }

    def call(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        answer = self.model(pixel_values=inputs["pixels"])
        return {"scores": answer.logits, "boxes": answer.pred_boxes}


def _mask(inputs: dict[str, Tensor]) -> Tensor | None:
    if "lengths" not in inputs:
        return None
    return (torch.arange(inputs["tokens"].shape[1])[None] < inputs["lengths"][:, None]).long()


def label_names(config: Any) -> tuple[str, ...]:
    return tuple(str(config.id2label[index]) for index in sorted(config.id2label))


def _alone(feeds: Arrays, index: int) -> Arrays:
    """One row as a batch of its own, without the padding it had beside longer ones."""
    alone = {name: value[index : index + 1] for name, value in feeds.items()}
    if "lengths" in alone:
        length = padded_length(int(alone["lengths"][0]))
        alone |= {name: alone[name][:, :length] for name in ("tokens", "segments") if name in alone}
    return alone
