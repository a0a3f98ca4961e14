"""`python -m deploy.overlay NAME [--apply]`: an overlay of deploy/k8s from its serve.yaml, checked before anything is
applied.

Writes the overlay's serveConfigV2.yaml, packages.env and envoy.yaml and prints the manifests; with `--apply` it applies
them, if every secret that they need is there. What is wrong is told in one sentence (exit 2), and what runs goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.gateway import settings as gateway
from deploy.gateway.envoy import envoy
from service.config import ConfigError, Service, load
from service.package import PackageError, verify
from service.rendering import Nodes, render

GATEWAY = "gateway.yaml"
K8S = Path(__file__).with_name("k8s")
ON_NODES = Nodes(models=Path("/models"), keys=Path("/etc/headwaiter/keys.txt"))


class OverlayError(Exception):
    """The overlay cannot be made or applied; the message says why. Nothing was applied."""


def write(folder: Path, store: str = "/store") -> None:
    service = _checked(folder / "serve.yaml")
    rendered = yaml.safe_dump(render(service, ON_NODES), sort_keys=False, allow_unicode=True)
    packages = " ".join(sorted({"/".join(each.folder.resolve().parts[-3:]) for each in service.packages.values()}))
    if (folder / GATEWAY).exists():
        (folder / "envoy.yaml").write_text(_envoy(folder / GATEWAY, service), encoding="utf-8")
    (folder / "serveConfigV2.yaml").write_text(rendered, encoding="utf-8")
    (folder / "packages.env").write_text(f"STORE={store}\nPACKAGES={packages}\n", encoding="utf-8")


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


def secrets_needed(node: Any) -> Iterator[str]:
    """The names of all secrets that pods would wait for."""
    if isinstance(node, dict):
        for key, value in node.items():
            named = isinstance(value, dict) and not value.get("optional")
            if named and key == "secretKeyRef":
                yield value["name"]
            elif named and key == "secret" and "secretName" in value:
                yield value["secretName"]
            else:
                yield from secrets_needed(value)
    elif isinstance(node, list):
        for each in node:
            yield from secrets_needed(each)


def secrets_of_gateway(folder: Path) -> set[str]:
    """Those that its pods could do without, were it not for gateway.yaml."""
    if not (folder / GATEWAY).exists():
        return set()
    settings = gateway.load(folder / GATEWAY)
    asked = {"headwaiter-gateway-clients": settings.tls.clients, "headwaiter-gateway-jwks": settings.jwt}
    return {name for name, wanted in asked.items() if wanted}


def apply(documents: list[dict[str, Any]], also: Iterable[str] = ()) -> str:
    """If the secrets are there that the pods would wait for, and these."""
    there = set(_kubectl("get", "secrets", "--output", "jsonpath={.items[*].metadata.name}").split())
    missing = sorted({*secrets_needed(documents), *also} - there)
    if missing:
        raise OverlayError(
            f"The cluster has no secret {' and no secret '.join(missing)}; deploy/README.md says how to make it."
        )
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
    parser.add_argument("--store", default="/store", help="a folder of the pods, or an address, to fetch packages from")
    parser.add_argument("--apply", action="store_true")
    asked = parser.parse_args()
    try:
        folder = K8S / asked.name
        write(folder, asked.store)
        documents = manifests(folder)
        told = apply(documents, secrets_of_gateway(folder)) if asked.apply else yaml.safe_dump_all(documents)
        sys.stdout.write(told)
    except OverlayError as error:
        sys.stderr.write(f"✗ {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
