"""Models of the usual shapes with random weights: made once, exported by our own export, kept in a cache folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.package import Precision

if TYPE_CHECKING:
    from export.pipeline import Step

_CACHE = Path("build/bench")  # not among the models that are served
_SEED = 20
_WIDTH = 0.05  # of the weights: enough that scores differ from item to item


@dataclass(frozen=True, slots=True)
class Untrained:
    name: str
    build: Callable[[Path], Any]  # returns the model, having written what stands beside its weights
    precisions: tuple[Precision, ...] = ("fp32",)

    @property
    def checkpoint(self) -> Path:
        return _CACHE / "checkpoints" / self.name

    @property
    def package(self) -> Path:
        return _CACHE / "models" / self.name

    def missing(self) -> list[Precision]:
        return [each for each in self.precisions if not (self.package / "1" / each).exists()]

    def make(self, step: Step) -> None:
        """Whatever of it is not there yet."""
        if not self.checkpoint.exists():
            with step(f"{self.name}: random weights"):
                self._write_checkpoint()
        for precision in self.missing():
            self._export(precision, step)

    def forget(self) -> None:
        for place in (self.checkpoint, self.package):
            shutil.rmtree(place, ignore_errors=True)

    def _write_checkpoint(self) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.manual_seed(_SEED)
        with _whole(self.checkpoint) as folder, torch.no_grad():
            model = self.build(folder)
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(std=_WIDTH)
            model.save_pretrained(folder)

    def _export(self, precision: Precision, step: Step) -> None:
        from export.pipeline import Order, export

        order = Order(str(self.checkpoint), name=self.name, precision=precision, out=self.package.parent)
        export(order, lambda text: step(f"{self.name} {precision}: {text}"))


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder that gets its name only when all is in it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        content = Path(scratch) / folder.name
        content.mkdir()
        yield content
        content.rename(folder)


def _vit(folder: Path) -> Any:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    ViTImageProcessorPil().save_pretrained(folder)
    return ViTForImageClassification(ViTConfig(num_labels=1000))


def _bert(folder: Path) -> Any:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    config = BertConfig(num_labels=2)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + [f"word{index}" for index in range(config.vocab_size - len(special))]
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}).save_pretrained(folder)
    return BertForSequenceClassification(config)


def _decision_transformer(_: Path) -> Any:
    """As published for hopper and walker; its context of 1,024 tokens is 341 steps."""
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    return DecisionTransformerModel(
        DecisionTransformerConfig(
            state_dim=17, act_dim=6, hidden_size=128, n_layer=3, n_head=1, max_ep_len=1000, n_positions=1024
        )
    )


VIT = Untrained("vit-b16", _vit, ("fp32", "int8"))
BERT = Untrained("bert-base", _bert, ("fp32", "int8"))
POLICY = Untrained("decision-transformer", _decision_transformer)
UNTRAINED = {model.name: model for model in (VIT, BERT, POLICY)}
