"""Secrets, and their keys, that the pods of a set of manifests require."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

Secrets = dict[str, set[str]]
# One line per secret: its name and the names of its keys.
SECRETS_TEMPLATE = r'{{range .items}}{{.metadata.name}}{{range $key, $_ := .data}} {{$key}}{{end}}{{"\n"}}{{end}}'


def required_secrets(documents: Any) -> Secrets:
    """Keys of all mandatory secrets, and of optional ones if a config refers to their files."""
    secrets: defaultdict[str, set[str]] = defaultdict(set)
    configs = "\n".join(_config_texts(documents))
    for node in iter_mappings(documents):
        reference = node.get("secretKeyRef")
        if isinstance(reference, dict) and not reference.get("optional"):
            secrets[reference["name"]].add(reference["key"])
        for path, secret, key in _secret_files(node):
            if not secret.get("optional") or path in configs:
                secrets[secret["secretName"]].add(key)
    return dict(secrets)


def parse_existing_secrets(output: str) -> Secrets:
    """Parse the output of SECRETS_TEMPLATE."""
    return {name: set(keys) for name, *keys in (line.split() for line in output.splitlines() if line.strip())}


def missing_secrets(required: Secrets, existing: Secrets) -> list[str]:
    """One phrase for each missing secret or key."""
    no_secret = [f"no secret {name}" for name in sorted(required.keys() - existing.keys())]
    no_key = [
        f"no key {key} in the secret {name}"
        for name, keys in sorted(required.items())
        if name in existing
        for key in sorted(keys - existing[name])
    ]
    return [*no_secret, *no_key]


def _secret_files(pod: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Path, secret and key of each secret file of a pod spec; empty for other mappings."""
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


def _config_texts(documents: Any) -> Iterator[str]:
    for node in iter_mappings(documents):
        if node.get("kind") == "ConfigMap":
            yield from node.get("data", {}).values()
        if isinstance(node.get("serveConfigV2"), str):
            yield node["serveConfigV2"]


def iter_mappings(node: Any) -> Iterator[dict[str, Any]]:
    """All mappings in a YAML document, at any depth."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from iter_mappings(item)
