"""Access to the rendered manifests of an overlay."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.overlay import K8S
from tests.deploy.schemas_kit import Document

OVERLAYS = sorted(file.parent.name for file in K8S.glob("*/serve.yaml"))


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def ray_pods(documents: list[Document]) -> list[Document]:
    (service,) = of_kind(documents, "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


def public_service(documents: list[Document]) -> Document:
    """The Service that clients use."""
    return named(documents, "Service", "headwaiter")


def named(documents: list[Document], kind: str, name: str) -> Document:
    (document,) = (document for document in of_kind(documents, kind) if document["metadata"]["name"] == name)
    return document


def selected(selector: Document, documents: list[Document]) -> list[str]:
    """Node types of the Ray pods that a label selector, or the plain labels of a Service, selects."""
    required = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    expressions = selector.get("matchExpressions", [])
    present = {expression["key"] for expression in expressions if expression["operator"] == "Exists"}
    all_labels = [pod["metadata"]["labels"] for pod in ray_pods(documents)]
    return [
        labels["headwaiter-node"]
        for labels in all_labels
        if required.items() <= labels.items() and present <= labels.keys()
    ]


def pods(documents: list[Document]) -> list[Document]:
    workloads = [document for document in documents if document["kind"] in ("Deployment", "StatefulSet")]
    return [*ray_pods(documents), *(workload["spec"]["template"] for workload in workloads)]


def containers(documents: list[Document]) -> Iterator[Document]:
    for pod in pods(documents):
        yield from (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
