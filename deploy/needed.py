"""Which secrets the pods of manifests use, and which keys of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

Secrets = dict[str, set[str]]
# One line for each secret: its name, and the names of its keys.
TEMPLATE = r'{{range .items}}{{.metadata.name}}{{range $key, $_ := .data}} {{$key}}{{end}}{{"\n"}}{{end}}'


def secrets_needed(documents: Any) -> Secrets:
    """Those that pods would wait for; and of those that are optional, the files that a config names."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    configs = "\n".join(_configs(documents))
    for node in mappings(documents):
        reference = node.get("secretKeyRef")
        if isinstance(reference, dict) and not reference.get("optional"):
            found[reference["name"]].add(reference["key"])
        for path, secret, key in _files(node):
            if not secret.get("optional") or path in configs:
                found[secret["secretName"]].add(key)
    return dict(found)


def secrets_there(told: str) -> Secrets:
    """As the template tells them."""
    return {name: set(keys) for name, *keys in (line.split() for line in told.splitlines() if line.strip())}


def missing(needed: Secrets, there: Secrets) -> list[str]:
    """In words."""
    no_secret = [f"no secret {name}" for name in sorted(needed.keys() - there.keys())]
    no_key = [
        f"no {key} in its secret {name}"
        for name, keys in sorted(needed.items())
        if name in there
        for key in sorted(keys - there[name])
    ]
    return [*no_secret, *no_key]


def _files(pod: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Where a pod has the files of its secrets, if this is the spec of a pod."""
    if "containers" not in pod:
        return
    mounts = {
        mount["name"]: mount["mountPath"]
        for container in pod["containers"]
        for mount in container.get("volumeMounts", [])
    }
    for volume in pod.get("volumes", []):
        secret = volume.get("secret", {})
        for item in secret.get("items", []):
            yield f"{mounts[volume['name']]}/{item['path']}", secret, item["key"]


def _configs(documents: Any) -> Iterator[str]:
    for node in mappings(documents):
        if node.get("kind") == "ConfigMap":
            yield from node.get("data", {}).values()
        if isinstance(node.get("serveConfigV2"), str):
            yield node["serveConfigV2"]


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    """All that are in it, at any depth."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from mappings(each)
