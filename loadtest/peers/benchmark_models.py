"""The models of the comparison: the same weights and ONNX files for all servers, prepared once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.random_models import VIT, RandomModel

OPUS = "opus-mt-zh-en"
_CACHE = Path("build/peers/weights")


@dataclass(frozen=True, slots=True)
class BenchmarkModel:
    """A model that all servers run; `folder` holds the files that the peers need."""

    name: str
    task: str
    package: Path  # model package for Headwaiter
    folder: Path
    p99_limit_ms: float
    make: Callable[[BenchmarkModel], None]


def _opus(benchmark_model: BenchmarkModel) -> None:
    from headwaiter_export.menu import fetch, menu
    from headwaiter_export.sources.argos import load_argos
    from headwaiter_export.sources.argos_files import unpack

    unpack(fetch(menu()[OPUS]), benchmark_model.folder)
    settings = json.loads((benchmark_model.folder / "config.json").read_text(encoding="utf-8"))
    family = load_argos(benchmark_model.folder).family
    torch_folder = benchmark_model.folder / "torch"
    family.model.save_pretrained(torch_folder)
    shutil.copy(benchmark_model.folder / "sentencepiece.model", torch_folder)
    tokenizer = family.write_tokenizer.keywords  # type: ignore[attr-defined]
    vocabulary = {"tokens": tokenizer["vocabulary"], "eos": tokenizer["eos"], "unk": tokenizer["unk"]}
    vocabulary["appends_eos"] = bool(settings.get("add_source_eos"))
    (torch_folder / "vocabulary.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")


def _vit(benchmark_model: BenchmarkModel) -> None:
    model = _RANDOM_MODELS[benchmark_model.name]
    model.ensure_exported(lambda _: nullcontext())
    package = model.package / "1" / "fp32"
    settings = json.loads((package / "manifest.json").read_text(encoding="utf-8"))["preprocessing"]["image"]
    config = _pixels(settings) | {
        "file": str((package / "model.onnx").resolve()),
        "checkpoint": str(model.checkpoint.resolve()),
    }
    (benchmark_model.folder / "pixels.json").write_text(json.dumps(config), encoding="utf-8")


def _pixels(settings: dict[str, Any]) -> dict[str, Any]:
    size = {name: settings["resize"][name] for name in ("width", "height")}
    return size | {name: settings[name] for name in ("resample", "rescale", "mean", "std")}


def _small_vit(folder: Path) -> Any:
    """Build a model so small that serving dominates the cost."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=4, num_labels=10, **shape))


_SMALL = RandomModel("vit-small", _small_vit)
_RANDOM_MODELS = {model.name: model for model in (VIT, _SMALL)}
BENCHMARK_MODELS = {
    benchmark_model.name: benchmark_model
    for benchmark_model in (
        BenchmarkModel(OPUS, "translation", Path("models") / OPUS / "1" / "int8", _CACHE / OPUS, 3000, _opus),
        BenchmarkModel("vit-small", "images", _SMALL.package / "1" / "fp32", _CACHE / "vit-small", 500, _vit),
        BenchmarkModel("vit-b16", "images", VIT.package / "1" / "fp32", _CACHE / "vit-b16", 5000, _vit),
    )
}


def prepare(benchmark_model: BenchmarkModel) -> None:
    """Create the model's files unless they exist."""
    marker = benchmark_model.folder / ".complete"
    if not marker.exists():
        shutil.rmtree(benchmark_model.folder, ignore_errors=True)
        benchmark_model.folder.mkdir(parents=True)
        benchmark_model.make(benchmark_model)
        marker.touch()
