from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deploy import overlay
from deploy.overlay import K8S, OverlayError, apply, manifests, secrets_needed, secrets_of_gateway, write
from export.menu import menu
from service.package import digest
from service.rendering import ENVIRONMENT
from tests.deploy.schemas_kit import Document, validate
from tests.serving_kit import write_package

OVERLAYS = sorted(file.parent.name for file in K8S.glob("*/serve.yaml"))
HOUSE = {name: dish.task for name, dish in menu().items() if dish.parcel is None}
"""Beside the translator."""
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of deploy/ beside packages for all that it serves."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(K8S.parent, root / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    for precision in ("int8", "fp16"):
        write_package(root / "models", "opus-mt-zh-en", precision=precision)
    for name, task in HOUSE.items():
        write_package(root / "models", name, task=task)
    return root


@pytest.fixture(scope="module")
def documents(tree: Path) -> Callable[[str], list[Document]]:
    made: dict[str, list[Document]] = {}

    def make(name: str) -> list[Document]:
        if name not in made:
            write(tree / "deploy/k8s" / name)
            made[name] = manifests(tree / "deploy/k8s" / name)
        return made[name]

    return make


@pytest.fixture(params=OVERLAYS)
def rendered(request: pytest.FixtureRequest, documents: Callable[[str], list[Document]]) -> list[Document]:
    return documents(request.param)


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [each for each in documents if each["kind"] == kind]


def ray_pods(documents: list[Document]) -> list[Document]:
    (service,) = of_kind(documents, "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


def pods(documents: list[Document]) -> list[Document]:
    others = [each for each in documents if each["kind"] in ("Deployment", "StatefulSet")]
    return [*ray_pods(documents), *(each["spec"]["template"] for each in others)]


def containers(documents: list[Document]) -> Iterator[Document]:
    for pod in pods(documents):
        yield from (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])


def test_there_are_the_overlays_that_the_runbook_names() -> None:
    assert OVERLAYS == ["cpu", "gpu", "minimal"]


def test_every_document_fits_its_schema(rendered: list[Document]) -> None:
    for document in rendered:
        validate(document)


@pytest.mark.parametrize("kind", ["RayService", "NetworkPolicy", "PrometheusRule"])
def test_schemas_are_closed(documents: Callable[[str], list[Document]], kind: str) -> None:
    (document, *_) = of_kind(documents("cpu"), kind)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate({**document, "spec": {**document["spec"], "replcas": 1}})


def test_ray_accepts_the_serve_config(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    folders = {app.name: app.args.get("folder", "") for app in config.applications}
    assert folders["opus-mt-zh-en"].startswith("/models/opus-mt-zh-en/1/")
    assert config.http_options.host == "0.0.0.0"


def test_cpu_serves_what_a_laptop_does(documents: Callable[[str], list[Document]]) -> None:
    """And there is room for all of it, at the least and at the most."""
    (service,) = of_kind(documents("cpu"), "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    at_home = yaml.safe_load((K8S.parent / "serve.yaml").read_text(encoding="utf-8"))["models"]
    models = {app["name"]: app["deployments"][0] for app in config["applications"] if app["name"] != "catalog"}
    assert models.keys() == at_home.keys()
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    cpus = int(workers["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    for bound in ("min", "max"):
        asked = sum(
            each["autoscaling_config"][f"{bound}_replicas"] * each["ray_actor_options"]["num_cpus"]
            for each in models.values()
        )
        assert workers[f"{bound}Replicas"] == ceil(asked / cpus)


def test_ports_are_those_of_the_serve_config(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    served = {"grpc": config["grpc_options"]["port"], "http": config["http_options"]["port"]}
    metrics = {app["args"]["metrics"]["port"] for app in config["applications"]}
    _, worker = ray_pods(rendered)
    opened = {port["name"]: port["containerPort"] for port in worker["spec"]["containers"][0]["ports"]}
    assert opened == {**served, "metrics": metrics.pop()}
    ports = service["spec"]["serveService"]["spec"]["ports"]
    assert {port["name"]: port["targetPort"] for port in ports} == served


def test_every_node_has_the_environment_that_serving_needs(rendered: list[Document]) -> None:
    for pod in ray_pods(rendered):
        (ray,) = pod["spec"]["containers"]
        assert {each["name"]: each["value"] for each in ray["env"]}.items() >= ENVIRONMENT.items()


def test_what_pods_refer_to_is_there(rendered: list[Document]) -> None:
    there = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    for pod in ray_pods(rendered):
        spec = pod["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in there
        for volume in spec["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in there
    for container in containers(rendered):
        for source in container.get("envFrom", []):
            assert ("ConfigMap", source["configMapRef"]["name"]) in there


def test_pods_fetch_just_the_packages_that_are_served(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    folders = {app["args"]["folder"] for app in config["applications"] if "folder" in app["args"]}
    (packages,) = (each["data"] for each in of_kind(rendered, "ConfigMap") if "PACKAGES" in each["data"])
    assert {f"/models/{name}" for name in packages["PACKAGES"].split()} == folders


def test_nobody_is_root_and_nothing_floats(rendered: list[Document]) -> None:
    for pod in pods(rendered):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in containers(rendered):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert ":" in container["image"]
        assert not container["image"].endswith(":latest")
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


def test_replica_ports_are_open_to_the_cluster_alone(rendered: list[Document]) -> None:
    (policy,) = (each for each in of_kind(rendered, "NetworkPolicy") if each["metadata"]["name"] == "headwaiter")
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    assert all(selected <= pod["metadata"]["labels"].items() for pod in ray_pods(rendered))
    anyone = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    everywhere = [rule["from"] for rule in policy["spec"]["ingress"] if "ports" not in rule]
    assert (anyone, len(everywhere)) == ([], 1)
    assert [each["podSelector"]["matchLabels"].items() for each in everywhere[0]] == [selected]


def test_gpus(documents: Callable[[str], list[Document]]) -> None:
    _, worker = ray_pods(documents("gpu"))
    assert worker["spec"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert worker["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {each["image"] for pod in ray_pods(documents("gpu")) for each in pod["spec"]["containers"]} == {
        "headwaiter:cuda"
    }


def test_the_gateway_is_told_where_things_are(documents: Callable[[str], list[Document]]) -> None:
    found = documents("cpu")
    (config,) = (
        yaml.safe_load(each["data"]["envoy.yaml"])
        for each in of_kind(found, "ConfigMap")
        if "envoy.yaml" in each["data"]
    )
    (service,) = of_kind(found, "RayService")
    serve = service["spec"]["serveService"]
    called = {
        (place["address"], place["port_value"])
        for cluster in config["static_resources"]["clusters"]
        for group in cluster["load_assignment"]["endpoints"]
        for place in (each["endpoint"]["address"]["socket_address"] for each in group["lb_endpoints"])
    }
    assert called == {(serve["metadata"]["name"], port["port"]) for port in serve["spec"]["ports"]}
    (pod,) = (each["spec"]["template"]["spec"] for each in of_kind(found, "Deployment"))
    (listener,) = config["static_resources"]["listeners"]
    assert pod["containers"][0]["ports"][0]["containerPort"] == listener["address"]["socket_address"]["port_value"]
    mounted = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    context = listener["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    assert str(Path(context["tls_certificates"][0]["private_key"]["filename"]).parent) in mounted


def test_an_upgrade_may_go_step_by_step(tree: Path, documents: Callable[[str], list[Document]]) -> None:
    documents("cpu")
    folder = tree / "deploy/k8s/stepwise"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text("resources: [../cpu]\ncomponents: [../incremental]\n")
    (service,) = of_kind(manifests(folder), "RayService")
    validate(service)
    assert service["spec"]["upgradeStrategy"]["clusterUpgradeOptions"]["stepSizePercent"] == 20


def test_a_head_that_dies_is_remembered(documents: Callable[[str], list[Document]]) -> None:
    for name in ("cpu", "gpu"):
        (service,) = of_kind(documents(name), "RayService")
        memory = service["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
        assert memory["redisAddress"].partition(":")[0] in {
            each["metadata"]["name"] for each in of_kind(documents(name), "Service")
        }


@pytest.fixture
def copy(tree: Path, tmp_path: Path) -> Path:
    shutil.copytree(tree, tmp_path / "tree")
    return tmp_path / "tree/deploy/k8s/cpu"


def _without_host(folder: Path) -> None:
    (folder / "serve.yaml").write_text((folder / "serve.yaml").read_text().replace("http: {host: 0.0.0.0}\n", ""))


def _unknown_key(folder: Path) -> None:
    (folder / "serve.yaml").write_text("modles: {}\n")


def _no_rate(folder: Path) -> None:
    (folder / "gateway.yaml").write_text("rate: {per_second: 0}\n")


def _other_precision(folder: Path) -> None:
    (folder / "serve.yaml").write_text((folder / "serve.yaml").read_text().replace("int8", "fp32"))
    shutil.rmtree(folder.parents[2] / "models/opus-mt-zh-en/1/fp16")


def _spoilt_package(folder: Path) -> None:
    models = folder.parents[2] / "models"
    file = models / "opus-mt-zh-en/1/int8/model.onnx"
    file.write_bytes(b"graph")
    write_package(models, "opus-mt-zh-en", precision="int8", sha256={"model.onnx": digest(file)})
    file.write_bytes(b"spoilt")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_without_host, "http.host is 127.0.0.1, where no other pod could call; it must be 0.0.0.0"),
        (_unknown_key, "modles is not a key; models is"),
        (_no_rate, "gateway.yaml: rate.per_second: Input should be greater than or equal to 1"),
        (_other_precision, "opus-mt-zh-en has no fp32, only int8; export it first"),
        (_spoilt_package, "model.onnx is not the file that was packed"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(
    copy: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    before = (copy / "serveConfigV2.yaml").read_text() if (copy / "serveConfigV2.yaml").exists() else None
    spoil(copy)
    with pytest.raises(OverlayError) as caught:
        write(copy)
    assert sentence in str(caught.value)
    after = (copy / "serveConfigV2.yaml").read_text() if (copy / "serveConfigV2.yaml").exists() else None
    assert after == before


def test_a_missing_secret_is_told_before_anything_is_applied(
    documents: Callable[[str], list[Document]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = set(secrets_needed(documents("cpu")))
    assert "headwaiter-redis" in needed
    kubectl = tmp_path / "kubectl"  # a cluster that has these secrets, and writes down what is applied
    kubectl.write_text('#!/bin/sh\ncase $1 in get) cat "$SECRETS";; apply) cat > "$APPLIED"; echo done;; esac\n')
    kubectl.chmod(0o755)
    secrets, applied = tmp_path / "secrets", tmp_path / "applied"
    for name, value in {"SECRETS": secrets, "APPLIED": applied}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    secrets.write_text(" ".join(needed - {"headwaiter-redis"}))
    with pytest.raises(OverlayError, match="The cluster has no secret headwaiter-redis; deploy"):
        apply(documents("cpu"))
    assert not applied.exists()
    secrets.write_text(" ".join(needed))
    assert overlay.apply(documents("cpu")) == "done\n"
    assert len(list(yaml.safe_load_all(applied.read_text()))) == len(documents("cpu"))


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("", set()),
        ("tls: {clients: /etc/headwaiter/clients/ca.crt}", {"headwaiter-gateway-clients"}),
        ("jwt: {issuer: me, audience: us}", {"headwaiter-gateway-jwks"}),
    ],
)
def test_what_the_gateway_asks_of_callers_needs_secrets(tmp_path: Path, text: str, secrets: set[str]) -> None:
    (tmp_path / "gateway.yaml").write_text(text)
    assert secrets_of_gateway(tmp_path) == secrets


def test_optional_secrets_are_not_waited_for() -> None:
    volumes: list[dict[str, Any]] = [
        {"secret": {"secretName": "one"}},
        {"secret": {"secretName": "two", "optional": True}},
    ]
    assert list(secrets_needed({"volumes": volumes, "env": {"secretKeyRef": {"name": "three", "key": "k"}}})) == [
        "one",
        "three",
    ]
