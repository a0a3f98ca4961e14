"""What an overlay comes to, and where to look in it."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.overlay import K8S
from tests.deploy.schemas_kit import Document

OVERLAYS = sorted(file.parent.name for file in K8S.glob("*/serve.yaml"))


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [each for each in documents if each["kind"] == kind]


def ray_pods(documents: list[Document]) -> list[Document]:
    (service,) = of_kind(documents, "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


def entrance(documents: list[Document]) -> Document:
    """The Service that callers name."""
    (found,) = (each for each in of_kind(documents, "Service") if each["metadata"]["name"] == "headwaiter")
    return found


def selected(selector: Document, documents: list[Document]) -> list[str]:
    """Of Ray's pods, those whose labels fit. A Service's selector is the labels alone."""
    wanted = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    present = {each["key"] for each in selector.get("matchExpressions", []) if each["operator"] == "Exists"}
    labels = [pod["metadata"]["labels"] for pod in ray_pods(documents)]
    return [each["headwaiter-node"] for each in labels if wanted.items() <= each.items() and present <= each.keys()]


def pods(documents: list[Document]) -> list[Document]:
    others = [each for each in documents if each["kind"] in ("Deployment", "StatefulSet")]
    return [*ray_pods(documents), *(each["spec"]["template"] for each in others)]


def containers(documents: list[Document]) -> Iterator[Document]:
    for pod in pods(documents):
        yield from (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
