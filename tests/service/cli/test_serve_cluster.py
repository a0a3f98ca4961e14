"""`headwaiter serve --cluster` on a running Ray cluster."""

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

from headwaiter.api.keys import format_key_line, make_key
from headwaiter.client import Client, Unauthenticated
from headwaiter.serving.ports import reserve_ports
from headwaiter.serving.ray_compat import NODE_ENVIRONMENT
from loadtest.service_process import free_ports, write_config
from tests.conftest import Packages

_BIN = Path(sys.executable).parent
_TIMEOUT_SECONDS = 180
_ENVIRONMENT = {
    **os.environ,
    "RAY_AUTH_MODE": "disabled",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",  # the only proxy is updated within a second
}


def _serve(file: Path, address: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_BIN / "headwaiter", "serve", file, "--cluster"],
        env={**_ENVIRONMENT, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )


@contextmanager
def _ray_head(folder: Path) -> Iterator[str]:
    """Run a Ray head node and yield its address. Only its own processes are stopped afterwards."""
    gcs_port, client_port = free_ports("gcs", "client").values()
    log = folder / "ray.log"
    with reserve_ports() as ports, log.open("w") as log_file:
        node = subprocess.Popen(
            [
                *(_BIN / "ray", "start", "--head", "--block", "--disable-usage-stats"),
                *("--include-dashboard=false", "--num-cpus=4", "--object-store-memory=100000000"),
                *(f"--port={gcs_port}", f"--ray-client-server-port={client_port}", "--dashboard-agent-listen-port=0"),
                *("--min-worker-port=0", "--max-worker-port=0"),
            ],
            env={**_ENVIRONMENT, **NODE_ENVIRONMENT, **ports},
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            while "Ray runtime started" not in log.read_text():
                assert node.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield f"127.0.0.1:{gcs_port}"
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(_TIMEOUT_SECONDS)


@pytest.mark.slow
def test_serve_cluster_deploys_and_updates_in_place(tmp_path: Path, packages: Packages) -> None:
    file, ports = tmp_path / "serve.yaml", free_ports("grpc", "http", "metrics")
    vit, bert = ({"path": str(packages(kind, "fp32").package.folder)} for kind in ("vit", "bert"))
    write_config(file, ports, {"pictures": vit})
    with _ray_head(tmp_path) as address:
        first = _serve(file, address)
        assert first.returncode == 0, first.stdout + first.stderr
        assert f"gRPC     localhost:{ports['grpc']}" in first.stdout
        with Client(f"127.0.0.1:{ports['grpc']}") as client:
            assert [model.name for model in client.models()] == ["pictures"]
            write_config(file, ports, {"pictures": vit, "texts": bert})
            second = _serve(file, address)
            assert second.returncode == 0, second.stdout + second.stderr
            assert "pictures (unchanged)" in second.stdout
            assert {model.name for model in client.models()} == {"pictures", "texts"}
            assert client.classify("texts", text="a word").labels
        key = make_key()
        (tmp_path / "keys.txt").write_text(format_key_line("shop", key) + "\n")
        write_config(file, ports, {"pictures": vit, "texts": bert}, auth={"keys": "keys.txt"})
        third = _serve(file, address)
        assert third.returncode == 0, third.stdout + third.stderr
        _check_key_required(ports, key)


def _check_key_required(ports: dict[str, int], key: str) -> None:
    """Check a missing, a wrong and the right key over gRPC and HTTP, through HAProxy."""
    url = f"http://127.0.0.1:{ports['http']}/models/texts/classify"
    for sent_key in (None, make_key(), key):
        request = urllib.request.Request(url, b'{"text": "a word"}', {"content-type": "application/json"})
        if sent_key is not None:
            request.add_header("authorization", f"Bearer {sent_key}")
        with Client(f"127.0.0.1:{ports['grpc']}", key=sent_key) as client:
            if sent_key == key:
                assert client.classify("texts", text="a word").labels
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
                    assert response.status == 200
                continue
            with pytest.raises(Unauthenticated):
                client.classify("texts", text="a word")
        with pytest.raises(urllib.error.HTTPError) as rejected:
            urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
        assert rejected.value.code == 401


def test_serve_cluster_without_ray_exits_2_with_hint(tmp_path: Path, packages: Packages) -> None:
    file, ports = tmp_path / "serve.yaml", free_ports("grpc", "http", "metrics", "unused")
    write_config(
        file,
        {name: ports[name] for name in ("grpc", "http", "metrics")},
        {"m": {"path": str(packages("vit", "fp32").package.folder)}},
    )
    result = _serve(file, f"127.0.0.1:{ports['unused']}")
    assert result.returncode == 2
    assert "No Ray cluster is reachable" in result.stderr
    assert "`ray start --head`" in result.stderr
