from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwaiter.package.manifest import (
    FORMAT,
    MANIFEST,
    DecodingDefaults,
    FusionReport,
    Graph,
    Manifest,
    PackageError,
    Parity,
    Policy,
    Port,
    Precision,
    PrecisionLoss,
    Preprocessing,
    State,
    digest,
    open_package,
    padded_length,
    padding_multiple,
    verify,
    versions,
)
from headwaiter.package.preprocessing import ExactSize, ImageSettings, TokenizerFile


def _manifest(**changes: Any) -> Manifest:
    tokens = Port(name="tokens", dtype="int64", shape=("rows", "steps"))
    past = Port(name="past.0.key", dtype="float32", shape=("rows", 3, "max_length", 16))
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
        fused=FusionReport(attention=1, fused=1, operators={"GroupQueryAttention": 1}),
        parity=Parity(reference="torch fp32", grid="1 × 3", logits=1e-7, batched=0.0, tokens="40/40"),
        loss=PrecisionLoss(logits=0.01, batched=0.0),
        cuda={"decoder": {"GroupQueryAttention": "no kernel for float"}},
        limits={"max_length": 61},
        preprocessing=Preprocessing(
            text=TokenizerFile(file="tokenizer.json", segments=False, cleans_spaces=True, eos=0),
            image=ImageSettings(
                white_behind_transparency=False, resize=ExactSize(height=3, width=4), resample="bicubic"
            ),
        ),
        decoding=DecodingDefaults(
            decoder_start_token_ids=(0,), eos_token_ids=(0, 2), suppress_tokens=(1,), max_new_tokens=20
        ),
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
    checksums = {file.name: digest(file) for file in folder.iterdir()}
    manifest = _manifest(version=folder.parent.name, precision=folder.name, sha256=checksums, **changes)
    (folder / MANIFEST).write_text(manifest.model_dump_json(exclude_none=True), encoding="utf-8")
    return folder


SELECTIONS: list[tuple[list[str], dict[str, Any], str]] = [
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


@pytest.mark.parametrize(("available", "options", "expected"), SELECTIONS)
def test_open_package_selects_version_and_precision(
    tmp_path: Path, available: list[str], options: dict[str, Any], expected: str
) -> None:
    for package_id in available:
        _write(tmp_path / "tiny" / package_id)
    package = open_package(tmp_path / "tiny", **options)
    assert package.folder == tmp_path / "tiny" / expected
    assert f"{package.manifest.version}/{package.manifest.precision}" == expected


def test_open_package_directory_with_manifest_ignores_options(tmp_path: Path) -> None:
    _write(tmp_path / "tiny/2/fp32")
    precision: Precision = "int8"
    assert open_package(_write(tmp_path / "tiny/1/fp32"), precision=precision).manifest.version == "1"


def test_open_package_ignores_unrelated_entries(tmp_path: Path) -> None:
    _write(tmp_path / "tiny/3/fp32")
    for name in (".staging-77-abc/package", "4-old/fp32", "latest/fp32", "3/.old"):
        (tmp_path / "tiny" / name).mkdir(parents=True)
    (tmp_path / "tiny/5").write_text("a file, not a version")
    assert versions(tmp_path / "tiny") == ["3"]
    assert open_package(tmp_path / "tiny").folder == tmp_path / "tiny/3/fp32"


def _missing(_: Path) -> None: ...


def _empty(folder: Path) -> None:
    folder.mkdir()


def _without_manifest(folder: Path) -> None:
    (folder / "1/fp32").mkdir(parents=True)


def _version_1(folder: Path) -> None:
    _write(folder / "1/fp32")


def _without_fp32(folder: Path) -> None:
    _write(folder / "1/fp16")
    _write(folder / "1/int8")


def _edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        file = _write(folder / "1/fp32") / MANIFEST
        content = json.loads(file.read_text())
        file.write_text(json.dumps(change(content) or content))

    return prepare


def _truncated(folder: Path) -> None:
    file = _write(folder / "1/fp32") / MANIFEST
    file.write_text(file.read_text()[:100])


INVALID: list[tuple[Callable[[Path], None], dict[str, Any], str]] = [
    (_missing, {}, "does not exist"),
    (_empty, {}, "contains no model package"),
    (_without_manifest, {}, "contains no model package"),
    (_version_1, {"version": "2"}, "has no version 2; available: 1"),
    (_without_fp32, {}, "one of fp16, int8"),
    (_edited(lambda content: content.update(format=3)), {}, "package format 3; this release reads format 2"),
    (_edited(lambda content: content.update(format="one")), {}, "not a valid manifest: format"),
    (_edited(lambda content: content.pop("limits") and None), {}, "not a valid manifest: limits"),
    (_edited(lambda content: content.update(surprise=1)), {}, "not a valid manifest: surprise"),
    (_edited(lambda content: content.update(task="cooking")), {}, "not a valid manifest: task"),
    (_edited(lambda content: [content]), {}, "not a valid manifest"),
    (_truncated, {}, "cannot be read"),
]


@pytest.mark.parametrize(("prepare", "options", "hint"), INVALID, ids=[case[2] for case in INVALID])
def test_open_package_invalid_raises_package_error(
    tmp_path: Path, prepare: Callable[[Path], None], options: dict[str, Any], hint: str
) -> None:
    prepare(tmp_path / "tiny")
    with pytest.raises(PackageError, match="tiny") as caught:
        open_package(tmp_path / "tiny", **options)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_open_package_older_format_names_export_command(tmp_path: Path) -> None:
    models = tmp_path / "all models"
    folder = _write(models / "tiny/1/int8")
    content = json.loads((folder / MANIFEST).read_text())
    content |= {"format": 1, "decoding": {"start": [0], "stop": [0, 2], "max_new_tokens": 20}}
    (folder / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(PackageError) as caught:
        open_package(models / "tiny")
    assert str(caught.value) == (
        f"{folder} has package format 1; this release reads format 2: replace it with "
        f"`headwaiter export SOURCE --name tiny --version 1 --precision int8 --out '{models}' --force`, "
        f"where SOURCE is the original model (tiny)."
    )


def test_open_package_older_format_outside_of_models_omits_out(tmp_path: Path) -> None:
    _edited(lambda content: content.update(format=1))(tmp_path / "tiny")
    copy = (tmp_path / "tiny/1/fp32").rename(tmp_path / "copy")
    with pytest.raises(PackageError, match=r"copy has package format 1; .* --precision fp32 --force`"):
        open_package(copy)


def test_verify_changed_or_missing_file_raises_package_error(tmp_path: Path) -> None:
    package = open_package(_write(tmp_path / "tiny/1/fp32"))
    verify(package)
    assert package.size() == len(b"graph") + len(b"weights")

    package.file("decoder.onnx").write_bytes(b"grapes")
    with pytest.raises(PackageError, match=r"decoder\.onnx does not match its SHA-256 checksum"):
        verify(package)
    package.file("decoder.onnx").unlink()
    with pytest.raises(PackageError, match=r"decoder\.onnx is missing"):
        verify(package)


def test_manifest_json_round_trip_is_lossless() -> None:
    manifest = _manifest()
    assert manifest.format == FORMAT
    for options in ({}, {"exclude_none": True, "indent": 1}):
        assert Manifest.model_validate_json(manifest.model_dump_json(**options)) == manifest


@pytest.mark.parametrize(("multiples", "extra", "expected"), [(0, 1, 1), (1, 0, 1), (1, 1, 2), (32, 0, 32)])
def test_padded_length_rounds_up_to_multiple(multiples: int, extra: int, expected: int) -> None:
    assert padded_length(multiples * padding_multiple() + extra) == expected * padding_multiple()


def test_padding_multiple_is_not_read_at_import() -> None:
    script = (
        "from headwaiter.package import manifest\n"
        "assert manifest.padding_multiple.cache_info().misses == 0\n"
        "assert manifest.padding_multiple() in (8, 16)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
