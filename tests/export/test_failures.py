"""Rejected exports: one sentence, no partial package, existing packages unchanged."""

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

from headwaiter.package.manifest import PackageError, open_package, verify
from headwaiter_export.arrays import Arrays
from headwaiter_export.errors import ExportError, SourceError
from headwaiter_export.families.family import families, family, find_family
from headwaiter_export.families.text_classification import DistilBert
from headwaiter_export.pipeline import ExportRequest, export
from tests.tokenizers_kit import write_bert_tokenizer

Checkpoints = Callable[[str], Path]


def _weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def _pickle(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    _weights(folder).unlink()


def _truncate(fraction: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = _weights(folder).read_bytes()
        _weights(folder).write_bytes(content[: int(len(content) * fraction)])

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
        "convert them to model.safetensors with transformers' from_pretrained(…).save_pretrained(…)",
    ),
    "no weights": ("distilbert", _remove("*.safetensors"), "has no weights; model.safetensors is required"),
    "safetensors cut in the data": ("distilbert", _truncate(0.9), "model.safetensors is damaged or truncated"),
    "safetensors cut in the header": ("distilbert", _truncate(0.001), "model.safetensors is damaged or truncated"),
    "empty safetensors": ("distilbert", _truncate(0), "model.safetensors is damaged or truncated"),
    "garbage safetensors": (
        "distilbert",
        _overwrite("model.safetensors", "soup " * 100),
        "model.safetensors is damaged or truncated",
    ),
    "no config": ("distilbert", _remove("config.json"), "has no config.json"),
    "config that is not JSON": (
        "distilbert",
        _overwrite("config.json", "{model_type: bert"),
        "config.json is not valid JSON",
    ),
    "config that is a list": ("distilbert", _overwrite("config.json", "[]"), "has no model_type"),
    "no model_type": ("distilbert", _configure(model_type=None), "has no model_type"),
    "unknown family": (
        "distilbert",
        _configure(model_type="llama"),
        f"model_type 'llama' is not supported; supported are {', '.join(families())}.",
    ),
    "no tokenizer": ("distilbert", _remove(*_TOKENIZER), "tokenizer.json"),
    "broken tokenizer": ("distilbert", _overwrite("tokenizer.json", "{"), "tokenizer"),
    "no image processor": ("vit", _remove("preprocessor_config.json"), "preprocessor_config.json is required"),
    "broken image processor": ("vit", _overwrite("preprocessor_config.json", "{"), "preprocessor_config.json"),
    "no head": ("distilbert", _headless, "lack classifier.bias and 1 more; BertForSequenceClassification is required"),
    "another size": ("distilbert", _configure(hidden_dim=99), "lin1.bias has shape [52], expected [99]"),
    "heads that do not divide": ("distilbert", _configure(n_heads=5), "cannot be loaded"),
}


@pytest.fixture
def source(tmp_path: Path, checkpoints: Checkpoints) -> Callable[[str], Path]:
    """Copies of checkpoints that the test may damage."""
    return lambda kind: Path(shutil.copytree(checkpoints(kind), tmp_path / "source"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_export_damaged_source_is_rejected(damage: str, tmp_path: Path, source: Callable[[str], Path]) -> None:
    kind, apply, fragment = DAMAGES[damage]
    folder = source(kind)
    apply(folder)
    _assert_rejected(ExportRequest(str(folder), out=tmp_path / "models"), fragment)
    assert not list((tmp_path / "models").rglob("*"))


INVALID_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "wrong task": ({"task": "translation"}, "is a distilbert model for classification, not for translation"),
    **{
        f"name {name!r}": ({"name": name}, "is not a package name")
        for name in ("Tiny", "-tiny", ".tiny", "a/b", "../up", "", "tiny model", "naïve", "tiny\n")
    },
    **{
        f"version {version!r}": ({"version": version}, "versions are integers from 1")
        for version in ("0", "01", "x", "-1", "1.5", "", "²", "١", "../2")
    },
    "no such source": ({"source": "no/such/folder/anywhere"}, "no/such/folder/anywhere is not a source"),
}


@pytest.mark.parametrize("case", INVALID_REQUESTS)
def test_export_invalid_request_is_rejected(case: str, tmp_path: Path, checkpoints: Checkpoints) -> None:
    changes, fragment = INVALID_REQUESTS[case]
    _assert_rejected(
        ExportRequest(**{"source": str(checkpoints("distilbert")), "out": tmp_path / "models", **changes}), fragment
    )
    assert not list((tmp_path / "models").rglob("*"))


def test_export_unwritable_output_is_rejected(tmp_path: Path, checkpoints: Checkpoints) -> None:
    (tmp_path / "file").write_text("not a folder")
    for out in (tmp_path / "file", tmp_path / "file/models", Path("/proc/headwaiter")):
        _assert_rejected(ExportRequest(str(checkpoints("distilbert")), out=out), "choose another directory with --out")
    assert (tmp_path / "file").read_text() == "not a folder"


class WrongReference(DistilBert):
    """A family whose reference outputs differ from its graphs, as after an incorrect export."""

    def reference(self, arrays: Arrays) -> Arrays:
        return {name: value + np.float32(0.01) for name, value in super().reference(arrays).items()}


@pytest.fixture
def wrong_reference() -> Iterator[None]:
    real = find_family("distilbert")
    family("distilbert")(WrongReference)
    yield
    family("distilbert")(real)


@pytest.mark.usefixtures("wrong_reference")
def test_export_out_of_tolerance_raises_export_error(tmp_path: Path, checkpoints: Checkpoints) -> None:
    with pytest.raises(ExportError, match=r"differ from torch fp32 \(logits: .* the maximum is 1e-04\)"):
        export(ExportRequest(str(checkpoints("distilbert")), out=tmp_path / "models"))
    assert not list((tmp_path / "models").rglob("*"))


@pytest.mark.slow
def test_export_existing_version_is_replaced_only_with_force(tmp_path: Path, checkpoints: Checkpoints) -> None:
    request = ExportRequest(str(checkpoints("distilbert")), out=tmp_path)
    package = export(request)
    before = _contents(tmp_path)
    _assert_rejected(request, "already exists; choose another --version, or replace it with --force")
    assert _contents(tmp_path) == before

    forced = ExportRequest(request.source, out=tmp_path, force=True)
    real = find_family("distilbert")
    family("distilbert")(WrongReference)
    try:
        with pytest.raises(ExportError):
            export(forced)
    finally:
        family("distilbert")(real)
    assert _contents(tmp_path) == before

    package.file("tokenizer.json").write_text("damaged")
    package.file("extra").write_text("from the previous package")
    verify(export(forced))
    assert {path for path, _ in _contents(tmp_path)} == {path for path, _ in before}


KILLED_WHILE_PACKING = """
import contextlib, os, signal, sys
from pathlib import Path
from headwaiter_export.pipeline import ExportRequest, export

@contextlib.contextmanager
def step(text):
    if text == "pack":
        os.kill(os.getpid(), signal.SIGKILL)
    yield

export(ExportRequest(sys.argv[1], out=Path(sys.argv[2])), step)
"""


@pytest.mark.slow
def test_export_killed_leaves_no_package(tmp_path: Path, checkpoints: Checkpoints) -> None:
    request = ExportRequest(str(checkpoints("distilbert")), out=tmp_path / "models")
    result = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_PACKING, request.source, str(request.out)], check=False, timeout=300
    )
    assert result.returncode == -signal.SIGKILL
    assert any(request.out.rglob("*.onnx")), "the process was not killed while packing"
    with pytest.raises(PackageError):
        open_package(request.out / request.package_name)

    verify(export(request))
    assert {path.name for path in (request.out / request.package_name).iterdir()} == {"1"}


def test_export_insufficient_disk_space_is_rejected(
    small_disk: Callable[[int], Path], checkpoints: Checkpoints
) -> None:
    disk = small_disk(2)
    _assert_rejected(ExportRequest(str(checkpoints("distilbert")), out=disk), "MB free, the export needs about")
    assert not list(disk.iterdir())


def test_export_disk_full_leaves_nothing(small_disk: Callable[[int], Path], checkpoints: Checkpoints) -> None:
    """Another file fills the disk after the export has started."""
    disk = small_disk(32)
    other = disk / "other"

    @contextmanager
    def step(text: str) -> Iterator[None]:
        if text.startswith("trace"):
            other.write_bytes(bytes(shutil.disk_usage(disk).free - 8192))
        yield

    with pytest.raises(SourceError, match="is full; free some space") as caught:
        export(ExportRequest(str(checkpoints("distilbert")), out=disk), step)
    assert "\n" not in str(caught.value)
    assert list(disk.iterdir()) == [other]


def _assert_rejected(request: ExportRequest, fragment: str) -> None:
    with pytest.raises(SourceError) as caught:
        export(request)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def _contents(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((str(path), path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*"))
