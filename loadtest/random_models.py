"""Models of common shapes with random weights, built and exported once and cached in `build/bench`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwaiter.package.manifest import Precision

if TYPE_CHECKING:
    from headwaiter_export.pipeline import StepReporter

_CACHE = Path("build/bench")
_SEED = 20
_WEIGHT_STD = 0.05  # large enough that scores differ between inputs


@dataclass(frozen=True, slots=True)
class RandomModel:
    name: str
    build: Callable[[Path], Any]  # returns the model after writing its tokenizer or image processor
    precisions: tuple[Precision, ...] = ("fp32",)

    @property
    def checkpoint(self) -> Path:
        return _CACHE / "checkpoints" / self.name

    @property
    def package(self) -> Path:
        return _CACHE / "models" / self.name

    def missing(self) -> list[Precision]:
        return [precision for precision in self.precisions if not (self.package / "1" / precision).exists()]

    def ensure_exported(self, step: StepReporter) -> None:
        """Create the checkpoint and the packages that do not exist yet."""
        if not self.checkpoint.exists():
            with step(f"{self.name}: random weights"):
                self._write_checkpoint()
        for precision in self.missing():
            self._export(precision, step)

    def delete(self) -> None:
        for folder in (self.checkpoint, self.package):
            shutil.rmtree(folder, ignore_errors=True)

    def _write_checkpoint(self) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.manual_seed(_SEED)
        with _atomic_folder(self.checkpoint) as folder, torch.no_grad():
            model = self.build(folder)
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(std=_WEIGHT_STD)
            model.save_pretrained(folder)

    def _export(self, precision: Precision, step: StepReporter) -> None:
        from headwaiter_export.pipeline import ExportRequest, export

        request = ExportRequest(str(self.checkpoint), name=self.name, precision=precision, out=self.package.parent)
        export(request, lambda text: step(f"{self.name} {precision}: {text}"))


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a staging directory that is renamed to `folder` on success."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        staging = Path(scratch) / folder.name
        staging.mkdir()
        yield staging
        staging.rename(folder)


def _vit(folder: Path) -> Any:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    ViTImageProcessorPil().save_pretrained(folder)
    return ViTForImageClassification(ViTConfig(num_labels=1000))


def _bert(folder: Path, **sizes: int) -> Any:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    config = BertConfig(num_labels=2, **sizes)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = special + [f"word{index}" for index in range(config.vocab_size - len(special))]
    BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)}).save_pretrained(folder)
    return BertForSequenceClassification(config)


def _medium_bert(folder: Path) -> Any:
    return _bert(folder, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048)


def _detr(folder: Path) -> Any:
    """Half the width of DETR-R50, with a shallow backbone."""
    from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessorPil, ResNetConfig

    DetrImageProcessorPil(size={"shortest_edge": 480, "longest_edge": 800}).save_pretrained(folder)
    backbone = ResNetConfig(
        embedding_size=32, hidden_sizes=[64, 128, 256], depths=[2, 2, 2], layer_type="basic", out_features=["stage3"]
    )
    return DetrForObjectDetection(
        DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=128,
            encoder_layers=3,
            decoder_layers=3,
            encoder_ffn_dim=512,
            decoder_ffn_dim=512,
        )
    )


def _decision_transformer(_: Path) -> Any:
    """Use the shape published for Hopper and Walker; its context of 1,024 tokens is 341 steps."""
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    return DecisionTransformerModel(
        DecisionTransformerConfig(
            state_dim=17, act_dim=6, hidden_size=128, n_layer=3, n_head=1, max_ep_len=1000, n_positions=1024
        )
    )


VIT = RandomModel("vit-b16", _vit, ("fp32", "int8"))
BERT = RandomModel("bert-base", _bert, ("fp32", "int8"))
MEDIUM_BERT = RandomModel("bert-medium", _medium_bert)
DETR = RandomModel("detr-medium", _detr)
POLICY = RandomModel("decision-transformer", _decision_transformer)
RANDOM_MODELS = {model.name: model for model in (VIT, BERT, POLICY)}
