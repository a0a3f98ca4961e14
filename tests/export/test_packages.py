"""What registries have: checked before it is kept, kept whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from export.errors import SourceError
from export.packages import Parcel, fetch

WHEEL = Parcel("wheel", "MinAtar==1.0.15", "f40450e133c552b97222702bb7b1c5254b47758390f4bd25e411399af0b21d42")
NPM = Parcel("npm", "is-number@7.0.0", "7b75c1057198cf97696909a9bee176c9c5e9bcb5b03bf3ecef2f484defadd51e")
BOTH = [
    pytest.param(WHEEL, id="pip"),
    pytest.param(NPM, id="npm", marks=pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")),
]
NOWHERE = "http://127.0.0.1:9/"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_kept_is_checked_each_time(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = fetch(WHEEL)
    whole = kept.read_bytes()
    _cut_off(monkeypatch)
    assert fetch(WHEEL) == kept, "the second time asks nobody"
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(SourceError, match=r"MinAtar==1\.0\.15 could not be fetched"):
        fetch(WHEEL)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert fetch(WHEEL).read_bytes() == whole, "what was damaged is fetched again"


@pytest.mark.parametrize("parcel", BOTH)
def test_another_file_than_expected_is_not_kept(parcel: Parcel, cache: Path) -> None:
    with pytest.raises(SourceError) as caught:
        fetch(replace(parcel, sha256="0" * 64))
    _demand_clean(caught.value, cache, parcel.requirement)


@pytest.mark.parametrize("parcel", BOTH)
def test_registry_out_of_reach(parcel: Parcel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cut_off(monkeypatch)
    with pytest.raises(SourceError) as caught:
        fetch(parcel)
    _demand_clean(caught.value, cache, f"{parcel.requirement} could not be fetched from the package registry")


def test_a_program_that_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(SourceError) as caught:
        fetch(NPM)
    _demand_clean(caught.value, cache, "is fetched by npm, which is not installed")


def test_a_disk_that_is_full(small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    disk = small_disk(1)
    (disk / "other").write_bytes(bytes(1 << 20))
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
    with pytest.raises(SourceError) as caught:
        fetch(WHEEL)
    assert "\n" not in str(caught.value)
    assert [path.name for path in disk.rglob("*") if path.is_file()] == ["other"]


def _cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registries that nobody answers for."""
    settings = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": NOWHERE,
        "PIP_FIND_LINKS": "",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "npm_config_registry": NOWHERE,
        "npm_config_cache": "/nonexistent",
        "npm_config_fetch_retries": "0",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def _demand_clean(error: BaseException, cache: Path, sentence: str) -> None:
    assert sentence in str(error)
    assert "\n" not in str(error)
    assert not [path for path in cache.rglob("*") if path.is_file()]
