"""Validation against the schemas of Kubernetes and of the custom resources; unknown fields are errors."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import kubernetes_validate
import pytest
import yaml

KUBERNETES = "1.37"
CRDS = Path(__file__).parents[3] / "shared/crds"
Document = dict[str, Any]


def skip(reason: str) -> NoReturn:
    """Skip, or fail in CI. The variable is not `CI`, which would make hypothesis deterministic."""
    if "HEADWAITER_CI" in os.environ:
        pytest.fail(f"{reason}; CI requires it")
    pytest.skip(reason)


@cache
def custom_schemas() -> dict[tuple[str, str], Document]:
    """Schemas of the custom resources by apiVersion and kind."""
    if not CRDS.is_dir():
        skip(f"the custom resource definitions are not at {CRDS}")
    schemas = {}
    for file in CRDS.glob("*.yaml"):
        spec = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)[
            "spec"
        ]  # the C loader, because the files are large
        for version in spec["versions"]:
            schema = _forbid_unknown(version["schema"]["openAPIV3Schema"])
            schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def _forbid_unknown(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_forbid_unknown(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _forbid_unknown(value) for key, value in schema.items()}
    if isinstance(schema.get("pattern"), str):
        strict["pattern"] = schema["pattern"].replace("^(?i)", "(?i)^")  # Python allows flags at the start only
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        strict["additionalProperties"] = False
    return strict


def validate(document: Document) -> None:
    kind = document["apiVersion"], document["kind"]
    if "." in kind[0].partition("/")[0] and not kind[0].partition("/")[0].endswith(".k8s.io"):
        assert kind in custom_schemas(), f"no custom resource definition of {kind}"
        bare = {**document, "metadata": {"name": document["metadata"]["name"]}}
        jsonschema.Draft202012Validator(_open_metadata(custom_schemas()[kind])).validate(bare)
    else:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def _open_metadata(schema: Document) -> Document:
    """Allow any metadata: the API server validates it, not the custom resource definition."""
    return {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}
