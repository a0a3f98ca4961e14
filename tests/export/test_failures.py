"""Exports that must not happen: one clear sentence, nothing half-written, what was there before untouched."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from export.errors import ExportError, SourceError
from export.families.text_classification import DistilBert
from export.family import families, family, family_of
from export.pipeline import Order, export
from export.runtime import Arrays
from service.package import PackageError, open_package, verify
from tests.tokenizers_kit import write_bert_tokenizer

Checkpoints = Callable[[str], Path]


def _weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def _pickle(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    _weights(folder).unlink()


def _truncate(share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = _weights(folder).read_bytes()
        _weights(folder).write_bytes(content[: int(len(content) * share)])

    return damage


def _overwrite(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def _remove(*patterns: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for pattern in patterns:
            for file in folder.glob(pattern):
                file.unlink()

    return damage


def _configure(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / "config.json"
        content = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))

    return damage


def _headless(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    vocabulary = write_bert_tokenizer(folder)
    config = BertConfig(
        vocab_size=vocabulary, hidden_size=12, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    BertModel(config).save_pretrained(folder)


_TOKENIZER = ("tokenizer*", "vocab*", "special_tokens_map.json")
DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "pickled weights only": (
        "distilbert",
        _pickle,
        "convert it to model.safetensors where you trust it, with transformers' from_pretrained(…).save_pretrained(…)",
    ),
    "no weights": ("distilbert", _remove("*.safetensors"), "has no weights: model.safetensors is expected"),
    "safetensors cut in the data": ("distilbert", _truncate(0.9), "model.safetensors is damaged or cut short"),
    "safetensors cut in the header": ("distilbert", _truncate(0.001), "model.safetensors is damaged or cut short"),
    "empty safetensors": ("distilbert", _truncate(0), "model.safetensors is damaged or cut short"),
    "garbage safetensors": (
        "distilbert",
        _overwrite("model.safetensors", "soup " * 100),
        "model.safetensors is damaged or cut short",
    ),
    "no config": ("distilbert", _remove("config.json"), "has no config.json"),
    "config that is not JSON": (
        "distilbert",
        _overwrite("config.json", "{model_type: bert"),
        "config.json is not JSON",
    ),
    "config that is a list": ("distilbert", _overwrite("config.json", "[]"), "does not say its model_type"),
    "no model_type": ("distilbert", _configure(model_type=None), "does not say its model_type"),
    "unknown family": (
        "distilbert",
        _configure(model_type="llama"),
        f"The family 'llama' is not known; known are {', '.join(families())}.",
    ),
    "no tokenizer": ("distilbert", _remove(*_TOKENIZER), "tokenizer.json"),
    "broken tokenizer": ("distilbert", _overwrite("tokenizer.json", "{"), "tokenizer"),
    "no image processor": ("vit", _remove("preprocessor_config.json"), "needed is preprocessor_config.json"),
    "broken image processor": ("vit", _overwrite("preprocessor_config.json", "{"), "preprocessor_config.json"),
    "no head": ("distilbert", _headless, "lack classifier.bias and 1 more: BertForSequenceClassification is needed"),
    "another size": ("distilbert", _configure(hidden_dim=99), "lin1.bias is [52], not [99]"),
    "heads that do not divide": ("distilbert", _configure(n_heads=5), "cannot be loaded"),
}


@pytest.fixture
def source(tmp_path: Path, checkpoints: Checkpoints) -> Callable[[str], Path]:
    """A copy of a checkpoint that may be damaged."""
    return lambda kind: Path(shutil.copytree(checkpoints(kind), tmp_path / "source"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_sources(damage: str, tmp_path: Path, source: Callable[[str], Path]) -> None:
    kind, apply, sentence = DAMAGES[damage]
    folder = source(kind)
    apply(folder)
    _demand_refused(Order(str(folder), out=tmp_path / "models"), sentence)
    assert not list((tmp_path / "models").rglob("*"))


ORDERS: dict[str, tuple[dict[str, Any], str]] = {
    "wrong task": ({"task": "translation"}, "is a distilbert for classification, not for translation"),
    **{
        f"name {name!r}": ({"name": name}, "is not a package name")
        for name in ("Tiny", "-tiny", ".tiny", "a/b", "../up", "", "tiny model", "naïve", "tiny\n")
    },
    **{
        f"version {version!r}": ({"version": version}, "versions are whole numbers from 1 on")
        for version in ("0", "01", "x", "-1", "1.5", "", "²", "١", "../2")
    },
    "no such source": ({"source": "no/such/folder/anywhere"}, "is neither a directory"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_wrong_orders(order: str, tmp_path: Path, checkpoints: Checkpoints) -> None:
    changes, sentence = ORDERS[order]
    _demand_refused(
        Order(**{"source": str(checkpoints("distilbert")), "out": tmp_path / "models", **changes}), sentence
    )
    assert not list((tmp_path / "models").rglob("*"))


def test_out_that_cannot_be_a_folder(tmp_path: Path, checkpoints: Checkpoints) -> None:
    (tmp_path / "file").write_text("not a folder")
    for out in (tmp_path / "file", tmp_path / "file/models", Path("/proc/headwaiter")):
        _demand_refused(Order(str(checkpoints("distilbert")), out=out), "choose another place with --out")
    assert (tmp_path / "file").read_text() == "not a folder"


class WrongReference(DistilBert):
    """An original that says something else than the graphs: what a wrong export looks like to the checks."""

    def reference(self, arrays: Arrays) -> Arrays:
        return {name: value + np.float32(0.01) for name, value in super().reference(arrays).items()}


@pytest.fixture
def wrong() -> Iterator[None]:
    real = family_of("distilbert")
    family("distilbert")(WrongReference)
    yield
    family("distilbert")(real)


@pytest.mark.usefixtures("wrong")
def test_out_of_tolerance(tmp_path: Path, checkpoints: Checkpoints) -> None:
    with pytest.raises(ExportError, match=r"differ from torch fp32 \(logits: .* of the spread, at most 1e-04"):
        export(Order(str(checkpoints("distilbert")), out=tmp_path / "models"))
    assert not list((tmp_path / "models").rglob("*"))


def test_existing_version(tmp_path: Path, checkpoints: Checkpoints) -> None:
    order = Order(str(checkpoints("distilbert")), out=tmp_path)
    package = export(order)
    before = _contents(tmp_path)
    _demand_refused(order, "is there already: give another --version, or --force to replace it")
    assert _contents(tmp_path) == before

    forced = Order(order.source, out=tmp_path, force=True)
    real = family_of("distilbert")
    family("distilbert")(WrongReference)
    try:
        with pytest.raises(ExportError):
            export(forced)
    finally:
        family("distilbert")(real)
    assert _contents(tmp_path) == before

    package.file("tokenizer.json").write_text("damaged")
    package.file("left-over").write_text("from before")
    verify(export(forced))
    assert {path for path, _ in _contents(tmp_path)} == {path for path, _ in before}


DIES_WHILE_PACKING = """
import contextlib, os, signal, sys
from pathlib import Path
from export.pipeline import Order, export

@contextlib.contextmanager
def step(text):
    if text == "pack":
        os.kill(os.getpid(), signal.SIGKILL)
    yield

export(Order(sys.argv[1], out=Path(sys.argv[2])), step)
"""


@pytest.mark.slow
def test_killed(tmp_path: Path, checkpoints: Checkpoints) -> None:
    order = Order(str(checkpoints("distilbert")), out=tmp_path / "models")
    finished = subprocess.run(
        [sys.executable, "-c", DIES_WHILE_PACKING, order.source, str(order.out)], check=False, timeout=300
    )
    assert finished.returncode == -signal.SIGKILL
    assert any(order.out.rglob("*.onnx")), "it was killed in the middle"
    with pytest.raises(PackageError):
        open_package(order.out / order.package_name)

    verify(export(order))
    assert {path.name for path in (order.out / order.package_name).iterdir()} == {"1"}


def test_too_small_a_disk(small_disk: Callable[[int], Path], checkpoints: Checkpoints) -> None:
    disk = small_disk(2)
    _demand_refused(Order(str(checkpoints("distilbert")), out=disk), "MB left and the export needs about")
    assert not list(disk.iterdir())


def test_disk_that_fills_up(small_disk: Callable[[int], Path], checkpoints: Checkpoints) -> None:
    """Somebody else's file takes the room that was there when the export began."""
    disk = small_disk(32)
    other = disk / "other"

    @contextmanager
    def step(text: str) -> Iterator[None]:
        if text.startswith("trace"):
            other.write_bytes(bytes(shutil.disk_usage(disk).free - 8192))
        yield

    with pytest.raises(SourceError, match="is full: free some room") as caught:
        export(Order(str(checkpoints("distilbert")), out=disk), step)
    assert "\n" not in str(caught.value)
    assert list(disk.iterdir()) == [other]


def _demand_refused(order: Order, sentence: str) -> None:
    with pytest.raises(SourceError) as caught:
        export(order)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value), "one sentence"


def _contents(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((str(path), path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*"))
