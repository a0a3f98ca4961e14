"""`python -m deploy.overlay NAME [--apply]`: render an overlay of deploy/k8s from its serve.yaml.

Writes serveConfigV2.yaml, packages.env and envoy.yaml of the overlay and prints the manifests. With `--apply` it
applies them, provided that the secrets they need exist. Errors are reported before anything is applied (exit code 2).
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
from deploy.required_secrets import (
    SECRETS_TEMPLATE,
    iter_mappings,
    missing_secrets,
    parse_existing_secrets,
    required_secrets,
)
from headwaiter.package.manifest import PackageError, verify
from headwaiter.serving.config import CATALOG, ConfigError, Service, load_config
from headwaiter.serving.ray_config import NodePaths, render

GATEWAY = "gateway.yaml"
K8S = Path(__file__).with_name("k8s")
NODE_PATHS = NodePaths(models=Path("/models"), keys=Path("/etc/headwaiter/keys.txt"))
VOLUME, VOLUME_AT = "headwaiter-models", "/store/"
STORE = f"{VOLUME_AT}models"  # target of `kubectl cp models headwaiter-store:/store`


class OverlayError(Exception):
    """The overlay cannot be rendered or applied; nothing was applied."""


def write_overlay(folder: Path, store: str = STORE) -> None:
    """Write the generated files of an overlay. Raises OverlayError if one of its inputs is invalid."""
    service = _load_checked(folder / "serve.yaml")
    rendered = yaml.safe_dump(render(service, NODE_PATHS), sort_keys=False, allow_unicode=True)
    packages = sorted({"/".join(package.folder.resolve().parts[-3:]) for package in service.packages.values()})
    environment = {"STORE": store, "PACKAGES": " ".join(packages), "APPLICATIONS": " ".join(always_running(service))}
    if (folder / GATEWAY).exists():
        (folder / "envoy.yaml").write_text(_envoy(folder / GATEWAY, service), encoding="utf-8")
    (folder / "serveConfigV2.yaml").write_text(rendered, encoding="utf-8")
    lines = (f"{key}={value}\n" for key, value in environment.items())
    (folder / "packages.env").write_text("".join(lines), encoding="utf-8")


def always_running(service: Service) -> list[str]:
    """Applications for the readiness probe, without models that scale to zero: a probe would start them."""
    models = service.config.models.items()
    return [CATALOG, *(name for name, model in models if model.autoscale is None or model.autoscale.min)]


def _load_checked(file: Path) -> Service:
    try:
        service = load_config(file)
        for package in service.packages.values():
            verify(package)
    except (ConfigError, PackageError) as error:
        raise OverlayError(str(error)) from error
    for name, model in service.config.models.items():
        precision = service.packages[name].manifest.precision
        if model.precision not in (None, precision):
            raise OverlayError(f"{file}: {name} has no {model.precision} package, only {precision}; export it first.")
    if service.is_local:
        raise OverlayError(f"{file}: http.host is 127.0.0.1, which other pods cannot reach; it must be 0.0.0.0.")
    return service


def _envoy(file: Path, service: Service) -> str:
    try:
        settings = gateway.load_config(file)
    except gateway.GatewayError as error:
        raise OverlayError(str(error)) from error
    tasks = {name: package.manifest.task for name, package in service.packages.items()}
    return yaml.safe_dump(envoy(settings, tasks), sort_keys=False)


def manifests(folder: Path) -> list[dict[str, Any]]:
    """The Kubernetes manifests of an overlay."""
    return [document for document in yaml.safe_load_all(_kubectl("kustomize", str(folder))) if document]


def check_store(folder: Path, documents: list[dict[str, Any]], store: str) -> None:
    """Check that the volume is mounted exactly if packages come from it: pods wait forever for a missing volume."""
    mounted = any(mapping.get("claimName") == VOLUME for mapping in iter_mappings(documents))
    if mounted and not store.startswith(VOLUME_AT):
        raise OverlayError(
            f"{folder.name} fetches packages from {store} but also mounts the volume {VOLUME}; "
            f"remove ../volume from the components in {folder / 'kustomization.yaml'}."
        )
    if store.startswith(VOLUME_AT) and not mounted:
        raise OverlayError(
            f"{folder.name} does not mount the volume that {store} is on; "
            f"add ../volume to the components in {folder / 'kustomization.yaml'} or set --store."
        )


def apply(documents: list[dict[str, Any]]) -> str:
    """Apply the manifests. Raises OverlayError if a required secret is missing: the pods would wait for it."""
    existing = parse_existing_secrets(_kubectl("get", "secrets", "--output", f"go-template={SECRETS_TEMPLATE}"))
    if missing_items := missing_secrets(required_secrets(documents), existing):
        raise OverlayError(
            f"The cluster has {' and '.join(missing_items)}; see docs/operations/README.md for how to create it."
        )
    return _kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(documents))


def _kubectl(*arguments: str, stdin: str | None = None) -> str:
    try:
        result = subprocess.run(["kubectl", *arguments], input=stdin, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise OverlayError("kubectl is not installed; install it and try again.") from error
    if result.returncode:
        raise OverlayError(f"kubectl {arguments[0]}: {result.stderr.strip()}")
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.overlay", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=sorted(file.parent.name for file in K8S.glob("*/serve.yaml")))
    parser.add_argument(
        "--store", default=STORE, help="directory in the pods or URL to fetch packages from (default: %(default)s)"
    )
    parser.add_argument("--apply", action="store_true", help="apply the manifests instead of printing them")
    options = parser.parse_args()
    try:
        folder = K8S / options.name
        write_overlay(folder, options.store)
        documents = manifests(folder)
        check_store(folder, documents, options.store)
        sys.stdout.write(apply(documents) if options.apply else yaml.safe_dump_all(documents))
    except OverlayError as error:
        sys.stderr.write(f"✗ {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
