"""`headwaiter serve --cluster`: the same file, on a Ray that runs already and goes on afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.served import free_ports, write
from service.client import Client, Unauthenticated
from service.keys import line_for, make_key
from service.ports import own_ports
from service.rendering import ENVIRONMENT
from tests.conftest import Packages

_BIN = Path(sys.executable).parent
_SECONDS = 180
_ENVIRONMENT = {
    **os.environ,
    "RAY_AUTH_MODE": "disabled",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",  # there is one proxy, which hears of it in a second
}


def _serve(file: Path, address: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_BIN / "headwaiter", "serve", file, "--cluster"],
        env={**_ENVIRONMENT, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )


@contextmanager
def _ray(folder: Path) -> Iterator[str]:
    """A head node of its own; only its own processes end with it."""
    port, client = free_ports("gcs", "client").values()
    log = folder / "ray.log"
    with own_ports() as ports, log.open("w") as said:
        node = subprocess.Popen(
            [
                *(_BIN / "ray", "start", "--head", "--block", "--disable-usage-stats"),
                *("--include-dashboard=false", "--num-cpus=4", "--object-store-memory=100000000"),
                *(f"--port={port}", f"--ray-client-server-port={client}", "--dashboard-agent-listen-port=0"),
                *("--min-worker-port=0", "--max-worker-port=0"),
            ],
            env={**_ENVIRONMENT, **ENVIRONMENT, **ports},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + _SECONDS
            while "Ray runtime started" not in log.read_text():
                assert node.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield f"127.0.0.1:{port}"
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(_SECONDS)


@pytest.mark.slow
def test_deploys_to_a_ray_that_runs_and_changes_it_in_place(tmp_path: Path, packages: Packages) -> None:
    file, ports = tmp_path / "serve.yaml", free_ports("grpc", "http", "metrics")
    vit, bert = ({"path": str(packages(kind, "fp32").package.folder)} for kind in ("vit", "bert"))
    write(file, ports, {"pictures": vit})
    with _ray(tmp_path) as address:
        first = _serve(file, address)
        assert first.returncode == 0, first.stdout + first.stderr
        assert f"gRPC     localhost:{ports['grpc']}" in first.stdout
        with Client(f"127.0.0.1:{ports['grpc']}") as client:
            assert [each.name for each in client.models()] == ["pictures"]
            write(file, ports, {"pictures": vit, "texts": bert})
            second = _serve(file, address)
            assert second.returncode == 0, second.stdout + second.stderr
            assert "pictures (unchanged)" in second.stdout
            assert {each.name for each in client.models()} == {"pictures", "texts"}
            assert client.classify("texts", text="a word").labels
        key = make_key()
        (tmp_path / "keys.txt").write_text(line_for("shop", key) + "\n")
        write(file, ports, {"pictures": vit, "texts": bert}, auth={"keys": "keys.txt"})
        third = _serve(file, address)
        assert third.returncode == 0, third.stdout + third.stderr
        _demand_key(ports, key)


def _demand_key(ports: dict[str, int], key: str) -> None:
    """Over the whole way: HAProxy, and the replica that asks for it."""
    url = f"http://127.0.0.1:{ports['http']}/models/texts/classify"
    for given in (None, make_key(), key):
        request = urllib.request.Request(url, b'{"text": "a word"}', {"content-type": "application/json"})
        if given is not None:
            request.add_header("authorization", f"Bearer {given}")
        with Client(f"127.0.0.1:{ports['grpc']}", key=given) as client:
            if given == key:
                assert client.classify("texts", text="a word").labels
                with urllib.request.urlopen(request, timeout=_SECONDS) as response:
                    assert response.status == 200
                continue
            with pytest.raises(Unauthenticated):
                client.classify("texts", text="a word")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=_SECONDS)
        assert refused.value.code == 401


def test_without_a_ray_it_says_how_to_get_one(tmp_path: Path, packages: Packages) -> None:
    file, ports = tmp_path / "serve.yaml", free_ports("grpc", "http", "metrics", "nobody")
    write(
        file,
        {name: ports[name] for name in ("grpc", "http", "metrics")},
        {"m": {"path": str(packages("vit", "fp32").package.folder)}},
    )
    done = _serve(file, f"127.0.0.1:{ports['nobody']}")
    assert done.returncode == 2
    assert "No Ray cluster answers" in done.stderr
    assert "`ray start --head` starts one here" in done.stderr
