from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headwaiter.cli.serve import add_commands
from headwaiter.package.fetching import FetchError, fetch
from headwaiter.package.manifest import FORMAT, digest, open_package, verify
from tests.serving_kit import write_package

NAME = "one/1/fp32"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    write_package(folder, "one")
    (folder / NAME / "model.onnx").write_bytes(b"graph")
    write_package(folder, "one", sha256={"model.onnx": digest(folder / NAME / "model.onnx")})
    return folder


@pytest.fixture(params=["directory", "http"])
def location(request: pytest.FixtureRequest, store: Path) -> Iterator[str]:
    if request.param == "directory":
        yield str(store)
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_SilentHandler, directory=str(store))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def test_fetch_downloads_missing_and_corrupt_packages_only(location: str, tmp_path: Path) -> None:
    to = tmp_path / "models"
    assert fetch(location, [NAME], to) == [NAME]
    verify(open_package(to / "one"))
    assert fetch(location, [NAME], to) == []
    (to / NAME / "model.onnx").write_bytes(b"corrupt")
    assert fetch(location, [NAME], to) == [NAME]
    verify(open_package(to / "one"))
    assert [entry.name for entry in (to / "one/1").iterdir()] == ["fp32"]


def test_fetch_wrong_checksum_leaves_no_files(location: str, store: Path, tmp_path: Path) -> None:
    write_package(store, "one", sha256={"model.onnx": "0" * 64})
    with pytest.raises(FetchError, match=r"^one/1/fp32: model\.onnx has SHA-256 checksum [0-9a-f]{64}"):
        fetch(location, [NAME], tmp_path / "models")
    assert list((tmp_path / "models/one/1").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "checksums", "start", "hint"),
    [
        ("two/1/fp32", {}, "two/1/fp32: manifest.json ", "could not be fetched from"),
        (NAME, {"lost.bin": "0" * 64}, "one/1/fp32: lost.bin ", "could not be fetched from"),
        (NAME, {"../../../x": "0" * 64}, "one/1/fp32: ", "outside of the package"),
        ("one/1", {}, "one/1 ", "NAME/VERSION/PRECISION"),
        ("../one/1/fp32", {}, "../one/1/fp32 ", "NAME/VERSION/PRECISION"),
    ],
)
def test_fetch_invalid_package_raises_fetch_error(
    location: str, store: Path, tmp_path: Path, name: str, checksums: dict[str, str], start: str, hint: str
) -> None:
    write_package(store, "one", sha256=checksums)
    with pytest.raises(FetchError) as caught:
        fetch(location, [name], tmp_path / "models")
    assert str(caught.value).startswith(start)
    assert hint in str(caught.value)


def test_fetch_package_of_older_format_raises_fetch_error(location: str, store: Path, tmp_path: Path) -> None:
    write_package(store, "one", format=FORMAT - 1)
    with pytest.raises(FetchError, match=r"^one/1/fp32: .*`headwaiter export SOURCE --name one .*--force`"):
        fetch(location, [NAME], tmp_path / "models")


def test_fetch_command_reports_each_package(store: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    add_commands(app)
    to = ["--to", str(tmp_path / "models")]
    first, second = (CliRunner().invoke(app, ["fetch", str(store), NAME, *to]).stdout for _ in range(2))
    assert first == f"{NAME} (fetched)\n"
    assert second.startswith(f"{NAME} (")
    assert second != first
    failed = CliRunner().invoke(app, ["fetch", str(store), "two/1/fp32", *to])
    assert (failed.exit_code, failed.stderr.startswith("✗ two/1/fp32: manifest.json could not be fetched")) == (2, True)
