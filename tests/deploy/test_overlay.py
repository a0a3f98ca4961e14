"""Overlays: invalid input is rejected before anything is written or applied."""

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

from deploy.overlay import STORE, OverlayError, apply, check_store, manifests, write_overlay
from deploy.required_secrets import SECRETS_TEMPLATE, Secrets, iter_mappings, parse_existing_secrets, required_secrets
from headwaiter.api.keys import format_key_line, make_key
from headwaiter.package.manifest import digest
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


def _damaged_package(folder: Path) -> None:
    models = folder.parents[2] / "models"
    file = models / "opus-mt-zh-en/1/int8/model.onnx"
    file.write_bytes(b"graph")
    write_package(models, "opus-mt-zh-en", precision="int8", sha256={"model.onnx": digest(file)})
    file.write_bytes(b"damaged")


@pytest.mark.parametrize(
    ("damage", "fragments"),
    [
        (_without_host, ("http.host is 127.0.0.1", "0.0.0.0")),
        (_unknown_key, ("modles is not a valid key", "models")),
        (_no_rate, ("gateway.yaml: rate.per_second: ",)),
        (_other_precision, ("opus-mt-zh-en has no fp32", "only int8")),
        (_damaged_package, ("model.onnx", "export the model again")),
    ],
)
def test_write_overlay_invalid_input_writes_nothing(
    copy: Path, damage: Callable[[Path], None], fragments: tuple[str, ...]
) -> None:
    before = (copy / "serveConfigV2.yaml").read_text() if (copy / "serveConfigV2.yaml").exists() else None
    damage(copy)
    with pytest.raises(OverlayError) as caught:
        write_overlay(copy)
    for fragment in fragments:
        assert fragment in str(caught.value)
    after = (copy / "serveConfigV2.yaml").read_text() if (copy / "serveConfigV2.yaml").exists() else None
    assert after == before


@pytest.mark.parametrize(
    ("removed", "store", "remedy"),
    [
        ("../volume, ", STORE, "add ../volume"),
        ("", "https://models.example", "remove ../volume"),
        ("", "/opt/models", "remove ../volume"),
    ],
)
def test_check_store_volume_mismatch_raises(copy: Path, removed: str, store: str, remedy: str) -> None:
    file = copy / "kustomization.yaml"
    file.write_text(file.read_text().replace(removed, ""))
    write_overlay(copy, store)
    with pytest.raises(OverlayError) as caught:
        check_store(copy, manifests(copy), store)
    message = str(caught.value)
    assert message.startswith("cpu ")
    assert store in message
    assert remedy in message
    assert str(copy / "kustomization.yaml") in message


@pytest.mark.parametrize(("removed", "store"), [("", STORE), ("../volume, ", "https://models.example")])
def test_overlay_fetches_packages_from_volume_or_url(copy: Path, removed: str, store: str) -> None:
    file = copy / "kustomization.yaml"
    file.write_text(file.read_text().replace(removed, ""))
    write_overlay(copy, store)
    documents = manifests(copy)
    check_store(copy, documents, store)
    claims = [mapping["claimName"] for mapping in iter_mappings(documents) if "claimName" in mapping]
    assert claims == ([] if removed else ["headwaiter-models"] * 2)
    config_maps = [document["data"] for document in documents if document["kind"] == "ConfigMap"]
    (environment,) = (data for data in config_maps if "STORE" in data)
    assert environment["STORE"] == store


class FakeCluster:
    """A `kubectl` that lists the secrets it was given and stores applied manifests."""

    def __init__(self, folder: Path) -> None:
        self._secrets, self.applied = folder / "secrets", folder / "applied"
        kubectl = folder / "kubectl"
        kubectl.write_text(
            f"#!/bin/sh\ncase $1 in get) cat {self._secrets};; apply) cat > {self.applied}; echo done;; esac\n"
        )
        kubectl.chmod(0o755)

    def set_secrets(self, secrets: Secrets) -> None:
        self._secrets.write_text("".join(f"{name} {' '.join(keys)}\n" for name, keys in secrets.items()))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], FakeCluster]:
    """Creates a fake cluster; from then on `kubectl` uses it."""

    def create() -> FakeCluster:
        (tmp_path / "cluster").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path / "cluster"), prepend=os.pathsep)
        return FakeCluster(tmp_path / "cluster")

    return create


REDIS = {"headwaiter-redis": {"password"}}
TLS = {"headwaiter-gateway-tls": {"tls.crt", "tls.key"}}
KEYS = {"headwaiter-keys": {"keys.txt"}}
CLIENTS = {"headwaiter-gateway-clients": {"ca.crt"}}
JWKS = {"headwaiter-gateway-jwks": {"jwks.json"}}


def _with_keys(folder: Path) -> None:
    (folder / "keys.txt").write_text(format_key_line("alice", make_key()))
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
def test_required_secrets_follow_configuration(copy: Path, change: Callable[[Path], None], secrets: Secrets) -> None:
    change(copy)
    write_overlay(copy)
    assert required_secrets(manifests(copy)) == secrets


@pytest.mark.parametrize(
    ("existing", "missing"),
    [
        (TLS, "no secret headwaiter-redis"),
        (TLS | {"headwaiter-redis": {"pass"}}, "no key password in the secret headwaiter-redis"),
        (
            {"headwaiter-gateway-tls": {"tls.crt"}},
            "no secret headwaiter-redis and no key tls.key in the secret headwaiter-gateway-tls",
        ),
    ],
)
def test_apply_missing_secret_applies_nothing(
    documents: Callable[[str], list[Document]], cluster: Callable[[], FakeCluster], existing: Secrets, missing: str
) -> None:
    rendered = documents("cpu")
    fake = cluster()
    fake.set_secrets(existing)
    with pytest.raises(OverlayError) as caught:
        apply(rendered)
    assert str(caught.value).startswith(f"The cluster has {missing};")
    assert not fake.applied.exists()


def test_apply_with_all_secrets_applies_manifests(
    documents: Callable[[str], list[Document]], cluster: Callable[[], FakeCluster]
) -> None:
    rendered = documents("cpu")
    fake = cluster()
    fake.set_secrets(REDIS | TLS)
    assert apply(rendered) == "done\n"
    assert len(list(yaml.safe_load_all(fake.applied.read_text()))) == len(rendered)


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


@pytest.mark.slow
def test_kubectl_secrets_template_lists_names_and_keys(kubectl: str, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = [f"--server=http://127.0.0.1:{server.server_port}", f"--cache-dir={tmp_path}"]
        result = subprocess.run(
            [kubectl, *options, "get", "secrets", "--output", f"go-template={SECRETS_TEMPLATE}"],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "none")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        server.shutdown()
    assert result.stderr == ""
    assert parse_existing_secrets(result.stdout) == {"one": {"tls.crt", "tls.key"}, "empty": set()}
