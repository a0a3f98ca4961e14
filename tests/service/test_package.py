from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.package import (
    MANIFEST,
    PADDING,
    Decoding,
    Fused,
    Graph,
    Loss,
    Manifest,
    PackageError,
    Parity,
    Policy,
    Port,
    Precision,
    Preprocessing,
    State,
    digest,
    open_package,
    padded_length,
    verify,
    versions,
)
from service.preprocessing import ExactSize, ImageSettings, TokenizerFile


def _manifest(**changes: Any) -> Manifest:
    tokens = Port(name="tokens", dtype="int64", shape=("rows", "steps"))
    past = Port(name="past.0.key", dtype="float32", shape=("rows", 3, "room", 16))
    manifest = Manifest(
        name="tiny",
        version="1",
        task="captioning",
        family="vision-encoder-decoder",
        source="tiny",
        license="MIT",
        precision="fp32",
        created="2026-11-01T00:00:00+00:00",
        headwaiter="0.1.0",
        parameters=7,
        graphs={
            "decoder": Graph(file="decoder.onnx", nodes=9, attention=1, fused=1, inputs=(tokens, past), outputs=())
        },
        states=(State(input="past.0.key", output="present.0.key", dtype="float32", shape=past.shape, kind="append"),),
        fused=Fused(attention=1, fused=1, operators={"GroupQueryAttention": 1}),
        parity=Parity(reference="torch fp32", grid="1 × 3", logits=1e-7, batched=0.0, tokens="40/40"),
        loss=Loss(logits=0.01, batched=0.0),
        cuda={"decoder": {"GroupQueryAttention": "no kernel for float"}},
        limits={"room": 61},
        preprocessing=Preprocessing(
            text=TokenizerFile(file="tokenizer.json", segments=False, cleans_spaces=True, eos=0),
            image=ImageSettings(
                white_behind_transparency=False, resize=ExactSize(height=3, width=4), resample="bicubic"
            ),
        ),
        decoding=Decoding(start=(0,), stop=(0, 2), never=(1,), max_new_tokens=20),
        policy=Policy(state_size=4, action_size=2, actions="continuous", context=20),
        labels=("猫", "dog"),
        languages={"source": "zh", "target": "en"},
        sha256={},
    )
    return manifest.model_copy(update=changes)


def _write(folder: Path, files: dict[str, bytes] | None = None, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    for name, content in (files or {"decoder.onnx": b"graph", "weights.safetensors": b"weights"}).items():
        (folder / name).write_bytes(content)
    seals = {file.name: digest(file) for file in folder.iterdir()}
    manifest = _manifest(version=folder.parent.name, precision=folder.name, sha256=seals, **changes)
    (folder / MANIFEST).write_text(manifest.model_dump_json(exclude_none=True), encoding="utf-8")
    return folder


CHOICES: list[tuple[list[str], dict[str, Any], str]] = [
    (["1/fp32"], {}, "1/fp32"),
    (["9/fp32", "10/fp32"], {}, "10/fp32"),
    (["2/fp32", "10/int8"], {}, "10/int8"),
    (["9/fp32", "10/fp32"], {"version": "9"}, "9/fp32"),
    (["1/fp32", "1/int8"], {}, "1/fp32"),
    (["1/fp32", "1/int8"], {"precision": "int8"}, "1/int8"),
    (["1/fp32", "1/int8"], {"precision": "fp16"}, "1/fp32"),
    (["1/int8"], {"precision": "fp16"}, "1/int8"),
    (["1/fp16", "1/int8"], {"precision": "fp16"}, "1/fp16"),
    (["1/fp32", "2/int8"], {"version": "1", "precision": "int8"}, "1/fp32"),
]


@pytest.mark.parametrize(("there", "asked", "chosen"), CHOICES)
def test_choice(tmp_path: Path, there: list[str], asked: dict[str, Any], chosen: str) -> None:
    for place in there:
        _write(tmp_path / "tiny" / place)
    package = open_package(tmp_path / "tiny", **asked)
    assert package.folder == tmp_path / "tiny" / chosen
    assert f"{package.manifest.version}/{package.manifest.precision}" == chosen


def test_folder_with_a_manifest_is_taken_as_it_is(tmp_path: Path) -> None:
    _write(tmp_path / "tiny/2/fp32")
    precision: Precision = "int8"
    assert open_package(_write(tmp_path / "tiny/1/fp32"), precision=precision).manifest.version == "1"


def test_what_is_no_package_is_ignored(tmp_path: Path) -> None:
    _write(tmp_path / "tiny/3/fp32")
    for name in (".making-77-abc/package", "4-old/fp32", "latest/fp32", "3/.old"):
        (tmp_path / "tiny" / name).mkdir(parents=True)
    (tmp_path / "tiny/5").write_text("a file, not a version")
    assert versions(tmp_path / "tiny") == ["3"]
    assert open_package(tmp_path / "tiny").folder == tmp_path / "tiny/3/fp32"


def _nothing(_: Path) -> None: ...


def _empty(folder: Path) -> None:
    folder.mkdir()


def _half_written(folder: Path) -> None:
    (folder / "1/fp32").mkdir(parents=True)


def _no_fp32(folder: Path) -> None:
    _write(folder / "1/fp16")
    _write(folder / "1/int8")


def _edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        file = _write(folder / "1/fp32") / MANIFEST
        content = json.loads(file.read_text())
        file.write_text(json.dumps(change(content) or content))

    return prepare


def _cut(folder: Path) -> None:
    file = _write(folder / "1/fp32") / MANIFEST
    file.write_text(file.read_text()[:100])


MISTAKES: list[tuple[Callable[[Path], None], dict[str, Any], str]] = [
    (_nothing, {}, "is not there"),
    (_empty, {}, "holds no model package"),
    (_half_written, {}, "holds no model package"),
    (lambda folder: (_write(folder / "1/fp32"), None)[1], {"version": "2"}, "has no version 2; it has 1"),
    (_no_fp32, {}, "say which of fp16, int8 is meant"),
    (_edited(lambda content: content.update(format=2)), {}, "package format 2; this release reads up to 1"),
    (_edited(lambda content: content.update(format="one")), {}, "not a valid manifest: format"),
    (_edited(lambda content: content.pop("limits") and None), {}, "not a valid manifest: limits"),
    (_edited(lambda content: content.update(surprise=1)), {}, "not a valid manifest: surprise"),
    (_edited(lambda content: content.update(task="cooking")), {}, "not a valid manifest: task"),
    (_edited(lambda content: [content]), {}, "not a valid manifest"),
    (_cut, {}, "cannot be read"),
]


@pytest.mark.parametrize(("prepare", "asked", "sentence"), MISTAKES, ids=[mistake[2] for mistake in MISTAKES])
def test_mistakes(tmp_path: Path, prepare: Callable[[Path], None], asked: dict[str, Any], sentence: str) -> None:
    prepare(tmp_path / "tiny")
    with pytest.raises(PackageError, match="tiny") as caught:
        open_package(tmp_path / "tiny", **asked)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_verify(tmp_path: Path) -> None:
    package = open_package(_write(tmp_path / "tiny/1/fp32"))
    verify(package)
    assert package.size() == len(b"graph") + len(b"weights")

    package.file("decoder.onnx").write_bytes(b"grapes")
    with pytest.raises(PackageError, match=r"decoder\.onnx is not the file that was packed"):
        verify(package)
    package.file("decoder.onnx").unlink()
    with pytest.raises(PackageError, match=r"decoder\.onnx is missing"):
        verify(package)


def test_manifest_survives_json() -> None:
    manifest = _manifest()
    for options in ({}, {"exclude_none": True, "indent": 1}):
        assert Manifest.model_validate_json(manifest.model_dump_json(**options)) == manifest


@pytest.mark.parametrize(("length", "vectors"), [(1, 1), (PADDING, 1), (PADDING + 1, 2), (32 * PADDING, 32)])
def test_padded_length(length: int, vectors: int) -> None:
    assert padded_length(length) == vectors * PADDING
