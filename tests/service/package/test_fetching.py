from __future__ import annotations

import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
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


@pytest.fixture(params=["directory", "file", "http"])
def location(request: pytest.FixtureRequest, store: Path) -> Iterator[str]:
    match request.param:
        case "directory":
            yield str(store)
        case "file":
            yield store.as_uri()
        case _:
            with _http_server(_SilentHandler, store) as address:
                yield f"{address}/"


@contextmanager
def _http_server(handler: type[SimpleHTTPRequestHandler], folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
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


class _RedirectingHandler(_SilentHandler):
    """Has the store below /stored and redirects other paths to it."""

    def do_GET(self) -> None:
        if self.path.startswith("/stored/"):
            self.path = self.path.removeprefix("/stored")
            super().do_GET()
            return
        self.send_response(302)
        self.send_header("location", f"/stored{self.path}")
        self.send_header("content-length", "0")
        self.end_headers()


class _BreakingHandler(_SilentHandler):
    """Closes the connection in the middle of a graph."""

    def do_GET(self) -> None:
        if not self.path.endswith(".onnx"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"gra")


class _ProtectedHandler(_SilentHandler):
    """Asks for a user and a password."""

    def do_GET(self) -> None:
        if self.headers["authorization"] == f"Basic {b64encode(b'waiter:se/cret').decode()}":
            super().do_GET()
        else:
            self.send_error(403)


def test_fetch_follows_redirects(store: Path, tmp_path: Path) -> None:
    with _http_server(_RedirectingHandler, store) as address:
        assert fetch(address, [NAME], tmp_path / "models") == [NAME]
    verify(open_package(tmp_path / "models/one"))


def test_fetch_connection_broken_in_the_middle_leaves_no_files(store: Path, tmp_path: Path) -> None:
    with (
        _http_server(_BreakingHandler, store) as address,
        pytest.raises(
            FetchError, match=r"^one/1/fp32: model\.onnx could not be fetched from http://127\.0\.0\.1:\d+/one"
        ),
    ):
        fetch(address, [NAME], tmp_path / "models")
    assert list((tmp_path / "models/one/1").iterdir()) == []


def test_fetch_connection_broken_keeps_present_package(store: Path, tmp_path: Path) -> None:
    fetch(str(store), [NAME], tmp_path / "models")
    (tmp_path / "models" / NAME / "model.onnx").write_bytes(b"corrupt")
    with _http_server(_BreakingHandler, store) as address, pytest.raises(FetchError):
        fetch(address, [NAME], tmp_path / "models")
    assert (tmp_path / "models" / NAME / "model.onnx").read_bytes() == b"corrupt"


@pytest.mark.parametrize(("password", "name"), [("se%2Fcret", "two/1/fp32"), ("wr%2Fong", NAME)])
def test_fetch_url_with_credentials_uses_but_never_shows_them(
    store: Path, tmp_path: Path, password: str, name: str
) -> None:
    with _http_server(_ProtectedHandler, store) as address:
        with_credentials = address.replace("://", f"://waiter:{password}@")
        with pytest.raises(FetchError) as caught:
            fetch(with_credentials, [name], tmp_path / "models")
        assert f"could not be fetched from {address}/{name}" in str(caught.value)
        assert not any(secret in str(caught.value) for secret in ("waiter", password, "se/cret", "wr/ong"))
        if name != NAME:
            assert fetch(with_credentials, [NAME], tmp_path / "models") == [NAME]


def test_fetch_from_memory_filesystem_verifies_checksums(store: Path, tmp_path: Path) -> None:
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(store), "/store", recursive=True)
    assert fetch("memory://store", [NAME], tmp_path / "models") == [NAME]
    filesystem.pipe(f"/store/{NAME}/model.onnx", b"changed")
    with pytest.raises(FetchError, match="differs from its manifest"):
        fetch("memory://store", [NAME], tmp_path / "other")


@pytest.mark.parametrize(("scheme", "module", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_fetch_without_filesystem_package_names_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FetchError) as caught:
        fetch(f"{scheme}://user:secret@bucket/models", [NAME], tmp_path / "models")
    assert str(caught.value) == (
        f"{scheme}://bucket/models needs a package that is missing: pip install 'headwaiter[{extra}]'."
    )


def test_fetch_unknown_scheme_names_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(
        FetchError, match=r"^carrier://pigeon is not a package store; use .* http, https, s3, gs or file"
    ):
        fetch("carrier://pigeon", [NAME], tmp_path / "models")


def test_fetch_interrupted_between_renames_loses_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "models"
    fetch(str(store), [NAME], to)
    (to / NAME / "model.onnx").write_bytes(b"older")
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name.startswith(".fetching-"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(str(store), [NAME], to)
    assert (to / NAME / "model.onnx").read_bytes() == b"older"


def test_fetch_after_crash_between_renames_restores_package(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "models"
    fetch(str(store), [NAME], to)
    (to / NAME / "model.onnx").write_bytes(b"older")
    (to / NAME).rename((to / NAME).with_name(".replaced-fp32"))  # what a killed process leaves
    with pytest.raises(FetchError):
        fetch(str(tmp_path / "nowhere"), [NAME], to)
    assert (to / NAME / "model.onnx").read_bytes() == b"older"
    assert fetch(str(store), [NAME], to) == [NAME]
    assert [entry.name for entry in (to / "one/1").iterdir()] == ["fp32"]
