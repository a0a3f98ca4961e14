"""Kubernetes' own schemas, and those of the custom resources, closed to fields that they do not name."""

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
    """But not in CI. That variable is ours: with `CI` itself set hypothesis would try the same cases every time."""
    if "HEADWAITER_CI" in os.environ:
        pytest.fail(f"{reason}; in CI it must be there")
    pytest.skip(reason)


@cache
def custom_schemas() -> dict[tuple[str, str], Document]:
    """By apiVersion and kind."""
    if not CRDS.is_dir():
        skip(f"the custom resource definitions are not at {CRDS}")
    found = {}
    for file in CRDS.glob("*.yaml"):
        spec = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["spec"]  # megabytes
        for version in spec["versions"]:
            schema = _closed(version["schema"]["openAPIV3Schema"])
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("pattern"), str):
        closed["pattern"] = schema["pattern"].replace("^(?i)", "(?i)^")  # Go allows flags later than Python does
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        closed["additionalProperties"] = False
    return closed


def validate(document: Document) -> None:
    kind = document["apiVersion"], document["kind"]
    if "." in kind[0].partition("/")[0] and not kind[0].partition("/")[0].endswith(".k8s.io"):
        assert kind in custom_schemas(), f"no definition of {kind}"
        bare = {**document, "metadata": {"name": document["metadata"]["name"]}}
        jsonschema.Draft202012Validator(_open_metadata(custom_schemas()[kind])).validate(bare)
    else:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def _open_metadata(schema: Document) -> Document:
    """A resource's own metadata is checked by the API server for all kinds alike, not by its definition."""
    return {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}
