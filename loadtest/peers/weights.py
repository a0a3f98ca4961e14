"""What the peers serve: the very weights and ONNX files that Headwaiter serves, made once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.untrained import VIT, Untrained

OPUS = "opus-mt-zh-en"
_CACHE = Path("build/peers/weights")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that all serve; peers find in `folder` whatever any of them needs."""

    name: str
    task: str
    package: Path  # Headwaiter's
    folder: Path
    limit_ms: float  # of p99, the same for all
    make: Callable[[Subject], None]


def _opus(subject: Subject) -> None:
    from export.argos import load_argos, unpack
    from export.menu import fetch, menu

    unpack(fetch(menu()[OPUS]), subject.folder)
    settings = json.loads((subject.folder / "config.json").read_text(encoding="utf-8"))
    family = load_argos(subject.folder).family
    for_torch = subject.folder / "torch"
    family.model.save_pretrained(for_torch)
    shutil.copy(subject.folder / "sentencepiece.model", for_torch)
    stated = family.write_tokenizer.keywords  # type: ignore[attr-defined]
    about = {"tokens": stated["vocabulary"], "eos": stated["eos"], "unk": stated["unk"]}
    about["appends_eos"] = bool(settings.get("add_source_eos"))
    (for_torch / "vocabulary.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


def _vit(subject: Subject) -> None:
    model = _UNTRAINED[subject.name]
    model.make(lambda _: nullcontext())
    package = model.package / "1" / "fp32"
    settings = json.loads((package / "manifest.json").read_text(encoding="utf-8"))["preprocessing"]["image"]
    about = _pixels(settings) | {
        "file": str((package / "model.onnx").resolve()),
        "checkpoint": str(model.checkpoint.resolve()),
    }
    (subject.folder / "pixels.json").write_text(json.dumps(about), encoding="utf-8")


def _pixels(settings: dict[str, Any]) -> dict[str, Any]:
    size = {name: settings["resize"][name] for name in ("width", "height")}
    return size | {name: settings[name] for name in ("resample", "rescale", "mean", "std")}


def _small_vit(folder: Path) -> Any:
    """So little arithmetic that serving decides."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=4, num_labels=10, **shape))


_SMALL = Untrained("vit-small", _small_vit)
_UNTRAINED = {model.name: model for model in (VIT, _SMALL)}
SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(OPUS, "translation", Path("models") / OPUS / "1" / "int8", _CACHE / OPUS, 3000, _opus),
        Subject("vit-small", "images", _SMALL.package / "1" / "fp32", _CACHE / "vit-small", 500, _vit),
        Subject("vit-b16", "images", VIT.package / "1" / "fp32", _CACHE / "vit-b16", 5000, _vit),
    )
}


def prepare(subject: Subject) -> None:
    """Whatever of it is not there yet."""
    done = subject.folder / ".made"
    if not done.exists():
        shutil.rmtree(subject.folder, ignore_errors=True)
        subject.folder.mkdir(parents=True)
        subject.make(subject)
        done.touch()
