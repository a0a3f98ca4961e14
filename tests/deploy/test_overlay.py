"""What is wrong is told before anything is written or applied."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from deploy.needed import TEMPLATE, Secrets, mappings, secrets_needed, secrets_there
from deploy.overlay import STORE, OverlayError, apply, check_store, manifests, write
from service.keys import line_for, make_key
from service.package import digest
from tests.deploy.schemas_kit import Document
from tests.serving_kit import write_package


def _without_host(folder: Path) -> None:
    (folder / "serve.yaml").write_text((folder / "serve.yaml").read_text().replace("http: {host: 0.0.0.0}\n", ""))


def _unknown_key(folder: Path) -> None:
    (folder / "serve.yaml").write_text("modles: {}\n")


def _no_rate(folder: Path) -> None:
    (folder / "gateway.yaml").write_text("rate: {per_second: 0}\n")


def _other_precision(folder: Path) -> None:
    (folder / "serve.yaml").write_text((folder / "serve.yaml").read_text().replace("int8", "fp32"))
    shutil.rmtree(folder.parents[2] / "models/opus-mt-zh-en/1/fp16")


def _spoilt_package(folder: Path) -> None:
    models = folder.parents[2] / "models"
    file = models / "opus-mt-zh-en/1/int8/model.onnx"
    file.write_bytes(b"graph")
    write_package(models, "opus-mt-zh-en", precision="int8", sha256={"model.onnx": digest(file)})
    file.write_bytes(b"spoilt")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_without_host, "http.host is 127.0.0.1, where no other pod could call; it must be 0.0.0.0"),
        (_unknown_key, "modles is not a key; models is"),
        (_no_rate, "gateway.yaml: rate.per_second: Input should be greater than or equal to 1"),
        (_other_precision, "opus-mt-zh-en has no fp32, only int8; export it first"),
        (_spoilt_package, "model.onnx is not the file that was packed"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(
    copy: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    before = (copy / "serveConfigV2.yaml").read_text() if (copy / "serveConfigV2.yaml").exists() else None
    spoil(copy)
    with pytest.raises(OverlayError) as caught:
        write(copy)
    assert sentence in str(caught.value)
    after = (copy / "serveConfigV2.yaml").read_text() if (copy / "serveConfigV2.yaml").exists() else None
    assert after == before


@pytest.mark.parametrize(
    ("told", "store", "sentence"),
    [
        ("../volume, ", STORE, "cpu has no ../volume among its components, so there is no /store/models"),
        ("", "https://models.example", "cpu would fetch from https://models.example and wait for the volume"),
        ("", "/opt/models", "take ../volume out of components in"),
    ],
)
def test_a_volume_is_mounted_where_packages_come_from_it_and_nowhere_else(
    copy: Path, told: str, store: str, sentence: str
) -> None:
    file = copy / "kustomization.yaml"
    file.write_text(file.read_text().replace(told, ""))
    write(copy, store)
    with pytest.raises(OverlayError) as caught:
        check_store(copy, manifests(copy), store)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("without", "store"), [("", STORE), ("../volume, ", "https://models.example")])
def test_packages_come_from_a_volume_or_from_an_address(copy: Path, without: str, store: str) -> None:
    file = copy / "kustomization.yaml"
    file.write_text(file.read_text().replace(without, ""))
    write(copy, store)
    documents = manifests(copy)
    check_store(copy, documents, store)
    claims = [each["claimName"] for each in mappings(documents) if "claimName" in each]
    assert claims == ([] if without else ["headwaiter-models"] * 2)
    (told,) = (each["data"] for each in documents if each["kind"] == "ConfigMap" and "STORE" in each["data"])
    assert told["STORE"] == store


class Cluster:
    """Has these secrets, and writes down what is applied."""

    def __init__(self, folder: Path) -> None:
        self._secrets, self.applied = folder / "secrets", folder / "applied"
        kubectl = folder / "kubectl"
        kubectl.write_text(
            f"#!/bin/sh\ncase $1 in get) cat {self._secrets};; apply) cat > {self.applied}; echo done;; esac\n"
        )
        kubectl.chmod(0o755)

    def has(self, secrets: Secrets) -> None:
        self._secrets.write_text("".join(f"{name} {' '.join(keys)}\n" for name, keys in secrets.items()))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Cluster]:
    """Once it is there, `kubectl` talks to it."""

    def make() -> Cluster:
        (tmp_path / "cluster").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path / "cluster"), prepend=os.pathsep)
        return Cluster(tmp_path / "cluster")

    return make


REDIS = {"headwaiter-redis": {"password"}}
TLS = {"headwaiter-gateway-tls": {"tls.crt", "tls.key"}}
KEYS = {"headwaiter-keys": {"keys.txt"}}
CLIENTS = {"headwaiter-gateway-clients": {"ca.crt"}}
JWKS = {"headwaiter-gateway-jwks": {"jwks.json"}}


def _with_keys(folder: Path) -> None:
    (folder / "keys.txt").write_text(line_for("alice", make_key()))
    (folder / "serve.yaml").write_text("auth: {keys: keys.txt}\n" + (folder / "serve.yaml").read_text())


def _with_clients(folder: Path) -> None:
    (folder / "gateway.yaml").write_text("tls: {clients: /etc/headwaiter/clients/ca.crt}\n")


def _with_tokens(folder: Path) -> None:
    (folder / "gateway.yaml").write_text("jwt: {issuer: me, audience: us}\n")


@pytest.mark.parametrize(
    ("change", "secrets"),
    [
        (lambda _: None, REDIS | TLS),
        (_with_keys, REDIS | TLS | KEYS),
        (_with_clients, REDIS | TLS | CLIENTS),
        (_with_tokens, REDIS | TLS | JWKS),
    ],
)
def test_what_is_configured_needs_its_secrets(copy: Path, change: Callable[[Path], None], secrets: Secrets) -> None:
    change(copy)
    write(copy)
    assert secrets_needed(manifests(copy)) == secrets


@pytest.mark.parametrize(
    ("there", "lacks"),
    [
        (TLS, "no secret headwaiter-redis;"),
        (TLS | {"headwaiter-redis": {"pass"}}, "no password in its secret headwaiter-redis;"),
        (
            {"headwaiter-gateway-tls": {"tls.crt"}},
            "no secret headwaiter-redis and no tls.key in its secret headwaiter-gateway-tls;",
        ),
    ],
)
def test_a_missing_secret_is_told_before_anything_is_applied(
    documents: Callable[[str], list[Document]], cluster: Callable[[], Cluster], there: Secrets, lacks: str
) -> None:
    made = documents("cpu")
    found = cluster()
    found.has(there)
    with pytest.raises(OverlayError) as caught:
        apply(made)
    assert str(caught.value) == f"The cluster has {lacks} deploy/README.md says how to make it."
    assert not found.applied.exists()


def test_what_has_its_secrets_is_applied(
    documents: Callable[[str], list[Document]], cluster: Callable[[], Cluster]
) -> None:
    made = documents("cpu")
    found = cluster()
    found.has(REDIS | TLS)
    assert apply(made) == "done\n"
    assert len(list(yaml.safe_load_all(found.applied.read_text()))) == len(made)


API = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{"name": "secrets", "kind": "Secret", "namespaced": True, "verbs": ["list"]}],
    },
    "/api/v1/namespaces/default/secrets": {
        "kind": "SecretList",
        "apiVersion": "v1",
        "items": [
            {"metadata": {"name": "one"}, "data": {"tls.crt": "Yg==", "tls.key": "Yg=="}},
            {"metadata": {"name": "empty"}},
        ],
    },
}


class ApiServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(API[self.path.partition("?")[0]]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_kubectl_tells_names_and_keys_of_secrets(kubectl: str, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = [f"--server=http://127.0.0.1:{server.server_port}", f"--cache-dir={tmp_path}"]
        done = subprocess.run(
            [kubectl, *place, "get", "secrets", "--output", f"go-template={TEMPLATE}"],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "none")},
            capture_output=True,
            text=True,
        )
        server.shutdown()
    assert done.stderr == ""
    assert secrets_there(done.stdout) == {"one": {"tls.crt", "tls.key"}, "empty": set()}
