"""`python -m deploy.overlay NAME [--apply]`: an overlay of deploy/k8s from its serve.yaml, checked before anything is
applied.

Writes the overlay's serveConfigV2.yaml, packages.env and envoy.yaml and prints the manifests; with `--apply` it applies
them, if the secrets that they need are there. What is wrong is told in one sentence (exit 2), and what runs goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from deploy.gateway import settings as gateway
from deploy.gateway.envoy import envoy
from deploy.needed import TEMPLATE, mappings, missing, secrets_needed, secrets_there
from service.config import CATALOG, ConfigError, Service, load
from service.package import PackageError, verify
from service.rendering import Nodes, render

GATEWAY = "gateway.yaml"
K8S = Path(__file__).with_name("k8s")
ON_NODES = Nodes(models=Path("/models"), keys=Path("/etc/headwaiter/keys.txt"))
VOLUME, VOLUME_AT = "headwaiter-models", "/store/"
STORE = f"{VOLUME_AT}models"  # where `kubectl cp models headwaiter-store:/store` puts them


class OverlayError(Exception):
    """The overlay cannot be made or applied; the message says why. Nothing was applied."""


def write(folder: Path, store: str = STORE) -> None:
    service = _checked(folder / "serve.yaml")
    rendered = yaml.safe_dump(render(service, ON_NODES), sort_keys=False, allow_unicode=True)
    packages = sorted({"/".join(each.folder.resolve().parts[-3:]) for each in service.packages.values()})
    told = {"STORE": store, "PACKAGES": " ".join(packages), "APPLICATIONS": " ".join(always_there(service))}
    if (folder / GATEWAY).exists():
        (folder / "envoy.yaml").write_text(_envoy(folder / GATEWAY, service), encoding="utf-8")
    (folder / "serveConfigV2.yaml").write_text(rendered, encoding="utf-8")
    (folder / "packages.env").write_text("".join(f"{key}={value}\n" for key, value in told.items()), encoding="utf-8")


def always_there(service: Service) -> list[str]:
    """Who a readiness probe may ask: it would wake those that sleep while nobody calls them."""
    models = service.config.models.items()
    return [CATALOG, *(name for name, model in models if model.autoscale is None or model.autoscale.min)]


def _checked(file: Path) -> Service:
    try:
        service = load(file)
        for package in service.packages.values():
            verify(package)
    except (ConfigError, PackageError) as error:
        raise OverlayError(str(error)) from error
    for name, model in service.config.models.items():
        if model.precision not in (None, found := service.packages[name].manifest.precision):
            raise OverlayError(f"{file}: {name} has no {model.precision}, only {found}; export it first.")
    if service.is_local:
        raise OverlayError(f"{file}: http.host is 127.0.0.1, where no other pod could call; it must be 0.0.0.0.")
    return service


def _envoy(file: Path, service: Service) -> str:
    try:
        settings = gateway.load(file)
    except gateway.GatewayError as error:
        raise OverlayError(str(error)) from error
    tasks = {name: package.manifest.task for name, package in service.packages.items()}
    return yaml.safe_dump(envoy(settings, tasks), sort_keys=False)


def manifests(folder: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(_kubectl("kustomize", str(folder))) if each]


def check_store(folder: Path, documents: list[dict[str, Any]], store: str) -> None:
    """Pods wait for ever for a volume that nobody made."""
    mounted = any(each.get("claimName") == VOLUME for each in mappings(documents))
    if mounted and not store.startswith(VOLUME_AT):
        raise OverlayError(
            f"{folder.name} would fetch from {store} and wait for the volume {VOLUME} all the same; "
            f"take ../volume out of components in {folder / 'kustomization.yaml'}."
        )
    if store.startswith(VOLUME_AT) and not mounted:
        raise OverlayError(
            f"{folder.name} has no ../volume among its components, so there is no {store}; say where else by --store."
        )


def apply(documents: list[dict[str, Any]]) -> str:
    """If the cluster has what the pods would wait for."""
    there = secrets_there(_kubectl("get", "secrets", "--output", f"go-template={TEMPLATE}"))
    if lacks := missing(secrets_needed(documents), there):
        raise OverlayError(f"The cluster has {' and '.join(lacks)}; deploy/README.md says how to make it.")
    return _kubectl("apply", "--filename", "-", given=yaml.safe_dump_all(documents))


def _kubectl(*order: str, given: str | None = None) -> str:
    try:
        done = subprocess.run(["kubectl", *order], input=given, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise OverlayError("kubectl is not installed.") from error
    if done.returncode:
        raise OverlayError(f"kubectl {order[0]}: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.overlay", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=sorted(file.parent.name for file in K8S.glob("*/serve.yaml")))
    parser.add_argument("--store", default=STORE, help="a folder of the pods, or an address, to fetch packages from")
    parser.add_argument("--apply", action="store_true")
    asked = parser.parse_args()
    try:
        folder = K8S / asked.name
        write(folder, asked.store)
        documents = manifests(folder)
        check_store(folder, documents, asked.store)
        sys.stdout.write(apply(documents) if asked.apply else yaml.safe_dump_all(documents))
    except OverlayError as error:
        sys.stderr.write(f"✗ {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
