from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service.fetching import FetchError, fetch
from service.package import digest, open_package, verify
from service.serving import add_commands
from tests.serving_kit import write_package

NAME = "one/1/fp32"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    write_package(folder, "one")
    (folder / NAME / "model.onnx").write_bytes(b"graph")
    return _manifested(folder, {"model.onnx": digest(folder / NAME / "model.onnx")})


def _manifested(folder: Path, hashes: dict[str, str]) -> Path:
    write_package(folder, "one", sha256=hashes)
    return folder


@pytest.fixture(params=["folder", "address"])
def place(request: pytest.FixtureRequest, store: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(store)
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(store))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def test_a_package_comes_whole_and_once(place: str, tmp_path: Path) -> None:
    to = tmp_path / "models"
    assert fetch(place, [NAME], to) == [NAME]
    verify(open_package(to / "one"))
    assert fetch(place, [NAME], to) == []
    (to / NAME / "model.onnx").write_bytes(b"spoilt")
    assert fetch(place, [NAME], to) == [NAME]
    verify(open_package(to / "one"))
    assert [each.name for each in (to / "one/1").iterdir()] == ["fp32"]


def test_a_wrong_hash_leaves_nothing_behind(place: str, store: Path, tmp_path: Path) -> None:
    _manifested(store, {"model.onnx": "0" * 64})
    with pytest.raises(FetchError, match=r"^one/1/fp32: model\.onnx is not what its manifest says"):
        fetch(place, [NAME], tmp_path / "models")
    assert list((tmp_path / "models/one/1").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "hashes", "sentence"),
    [
        ("two/1/fp32", {}, "two/1/fp32: manifest.json could not be fetched from"),
        (NAME, {"lost.bin": "0" * 64}, "one/1/fp32: lost.bin could not be fetched from"),
        (NAME, {"../../../x": "0" * 64}, "which would lie outside of the package"),
        ("one/1", {}, "one/1 is not a package; write NAME/VERSION/PRECISION"),
        ("../one/1/fp32", {}, "../one/1/fp32 is not a package"),
    ],
)
def test_what_goes_wrong_is_told(
    place: str, store: Path, tmp_path: Path, name: str, hashes: dict[str, str], sentence: str
) -> None:
    _manifested(store, hashes)
    with pytest.raises(FetchError) as caught:
        fetch(place, [name], tmp_path / "models")
    assert sentence in str(caught.value)


def test_the_command(store: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    add_commands(app)
    to = ["--to", str(tmp_path / "models")]
    assert CliRunner().invoke(app, ["fetch", str(store), NAME, *to]).stdout == f"{NAME} (fetched)\n"
    assert CliRunner().invoke(app, ["fetch", str(store), NAME, *to]).stdout == f"{NAME} (was there)\n"
    failed = CliRunner().invoke(app, ["fetch", str(store), "two/1/fp32", *to])
    assert (failed.exit_code, failed.stderr.startswith("✗ two/1/fp32: manifest.json could not be fetched")) == (2, True)
