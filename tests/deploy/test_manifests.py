from __future__ import annotations

import tomllib
from collections.abc import Callable
from math import ceil
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deploy.gateway.settings import Upstream
from deploy.overlay import K8S, STORE, manifests, write
from service.rendering import ENVIRONMENT
from tests.deploy.manifests_kit import (
    OVERLAYS,
    containers,
    entrance,
    of_kind,
    pods,
    ray_pods,
    selected,
)
from tests.deploy.schemas_kit import Document, validate

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def version() -> str:
    return str(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"])


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
    assert {port["name"]: (port["port"], port["targetPort"]) for port in entrance(rendered)["spec"]["ports"]} == {
        name: (number, name) for name, number in served.items()
    }


def test_every_node_has_the_environment_that_serving_needs(rendered: list[Document]) -> None:
    for pod in ray_pods(rendered):
        (ray,) = pod["spec"]["containers"]
        assert {each["name"]: each["value"] for each in ray["env"]}.items() >= ENVIRONMENT.items()


def test_what_pods_refer_to_is_there(rendered: list[Document]) -> None:
    there = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    for pod in ray_pods(rendered):
        spec = pod["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in there
    for container in containers(rendered):
        for source in container.get("envFrom", []):
            assert ("ConfigMap", source["configMapRef"]["name"]) in there


def test_pods_fetch_just_the_packages_that_are_served(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    folders = {app["args"]["folder"] for app in config["applications"] if "folder" in app["args"]}
    (packages,) = (each["data"] for each in of_kind(rendered, "ConfigMap") if "PACKAGES" in each["data"])
    assert {f"/models/{name}" for name in packages["PACKAGES"].split()} == folders


def test_readiness_asks_for_every_model_that_is_always_there(copy: Path) -> None:
    text = (copy / "serve.yaml").read_text()
    assert "topics-bert, resources: {cpus: 0.5}, autoscale: {min: 2" in text
    (copy / "serve.yaml").write_text(
        text.replace("topics-bert, resources: {cpus: 0.5}, autoscale: {min: 2", "topics-bert, autoscale: {min: 0")
    )
    write(copy)
    documents = manifests(copy)
    (told,) = (each for each in of_kind(documents, "ConfigMap") if "APPLICATIONS" in each["data"])
    served = ["opus-mt-zh-en", "fashion-vit", "topics-bert", "emoji-detr", "emoji-captioner", "breakout-dt"]
    assert told["data"]["APPLICATIONS"].split() == ["catalog", *(name for name in served if name != "topics-bert")]
    _, worker = ray_pods(documents)
    (ray,) = worker["spec"]["containers"]
    assert ray["envFrom"] == [{"configMapRef": {"name": told["metadata"]["name"]}}]
    assert ray["readinessProbe"]["exec"]["command"][-1].endswith("service.probe localhost:9000 $APPLICATIONS")


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
    assert selected(policy["spec"]["podSelector"], rendered) == ["head", "worker"]
    anyone = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    everywhere = [rule["from"] for rule in policy["spec"]["ingress"] if "ports" not in rule]
    assert anyone == []
    assert everywhere == [[{"podSelector": policy["spec"]["podSelector"]}]]


def test_callers_find_workers_by_labels_that_kuberay_leaves_alone(rendered: list[Document]) -> None:
    """By its own labels, and by `app.kubernetes.io`'s, KubeRay finds the head."""
    assert selected(entrance(rendered)["spec"]["selector"], rendered) == ["worker"]
    (service,) = of_kind(rendered, "RayService")
    head, worker = ray_pods(rendered)
    assert not [key for key in (*head["metadata"]["labels"], *worker["metadata"]["labels"]) if "/" in key]
    # KubeRay makes a Service of its own from this port, and waits for it; it keeps no other port.
    assert "serveService" not in service["spec"]
    assert {"name": "serve", "containerPort": 8000} in head["spec"]["containers"][0]["ports"]


def test_prometheus_finds_head_and_workers(documents: Callable[[str], list[Document]]) -> None:
    (monitor,) = of_kind(documents("cpu"), "PodMonitor")
    assert selected(monitor["spec"]["selector"], documents("cpu")) == ["head", "worker"]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_one_worker_may_be_away(documents: Callable[[str], list[Document]], name: str) -> None:
    """Of pods that a custom resource owns Kubernetes takes no other budget than how many must stay."""
    (service,) = of_kind(documents(name), "RayService")
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    budgets = [each["spec"] for each in of_kind(documents(name), "PodDisruptionBudget")]
    (budget,) = (each for each in budgets if selected(each["selector"], documents(name)))
    assert selected(budget["selector"], documents(name)) == ["worker"]
    assert budget == {"selector": budget["selector"], "minAvailable": workers["minReplicas"] - 1}


def test_gpus(documents: Callable[[str], list[Document]]) -> None:
    (service,) = of_kind(documents("gpu"), "RayService")
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    worker = workers["template"]["spec"]
    assert worker["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    models = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][1:]
    deployments = [each["deployments"][0] for each in models]
    shares = [
        each["autoscaling_config"]["max_replicas"] * each["ray_actor_options"]["num_gpus"] for each in deployments
    ]
    assert workers["maxReplicas"] == ceil(sum(shares))


@pytest.mark.parametrize(("name", "kind"), [("minimal", "cpu"), ("cpu", "cpu"), ("gpu", "cuda")])
@pytest.mark.parametrize("registry", ["", "registry.test/"])
def test_images_are_of_this_version_from_wherever_they_are(
    copy: Path, version: str, name: str, kind: str, registry: str
) -> None:
    folder = copy.with_name(name)
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("newName: headwaiter", f"newName: {registry}headwaiter"))
    write(folder)
    specs = [pod["spec"] for pod in ray_pods(manifests(folder))]
    images = {each["image"] for spec in specs for each in (*spec["initContainers"], *spec["containers"])}
    assert images == {f"{registry}headwaiter:{version}-{kind}"}


@pytest.mark.parametrize(
    ("folder", "mode"), [("deploy/k8s/store", "ReadWriteMany"), ("deploy/k8s/store-one-node", "ReadWriteOnce")]
)
def test_the_store_is_a_volume_and_a_pod_beside_it(tree: Path, version: str, folder: str, mode: str) -> None:
    documents = manifests(tree / folder)
    for each in documents:
        validate(each)
    (claim,), (pod,) = of_kind(documents, "PersistentVolumeClaim"), of_kind(documents, "Pod")
    assert claim["spec"]["accessModes"] == [mode]
    (container,), (volume,) = pod["spec"]["containers"], pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["image"] == f"headwaiter:{version}-cpu"
    assert STORE.startswith(container["volumeMounts"][0]["mountPath"] + "/")


def test_workers_have_no_rights_and_no_token(rendered: list[Document]) -> None:
    head, worker = (pod["spec"] for pod in ray_pods(rendered))
    bound = {subject["name"] for each in of_kind(rendered, "RoleBinding") for subject in each["subjects"]}
    assert bound == {head["serviceAccountName"]}
    assert worker["serviceAccountName"] not in bound
    assert worker["automountServiceAccountToken"] is False


def test_who_says_so_may_call(rendered: list[Document]) -> None:
    (policy,) = (each for each in of_kind(rendered, "NetworkPolicy") if each["metadata"]["name"] == "headwaiter")
    client = {"podSelector": {"matchLabels": {"headwaiter-client": "true"}}}
    (rule,) = (each for each in policy["spec"]["ingress"] if client in each["from"])
    assert {each["port"] for each in rule["ports"]} == {each["port"] for each in entrance(rendered)["spec"]["ports"]}


def test_the_gateway_is_told_where_things_are(documents: Callable[[str], list[Document]]) -> None:
    found = documents("cpu")
    (config,) = (
        yaml.safe_load(each["data"]["envoy.yaml"])
        for each in of_kind(found, "ConfigMap")
        if "envoy.yaml" in each["data"]
    )
    serve = entrance(found)
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


def test_a_pod_that_leaves_outlives_the_connections_to_it(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    finishing = max(app["deployments"][0]["graceful_shutdown_timeout_s"] for app in config["applications"])
    for pod in ray_pods(rendered):
        (program, seconds) = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "sleep"
        assert int(seconds) > Upstream().connection_seconds
        assert pod["spec"]["terminationGracePeriodSeconds"] > int(seconds) + finishing


def test_an_upgrade_may_go_step_by_step(tree: Path, documents: Callable[[str], list[Document]]) -> None:
    documents("cpu")
    folder = tree / "deploy/k8s/stepwise"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text("resources: [../cpu]\ncomponents: [../incremental]\n")
    found = manifests(folder)
    for each in found:
        validate(each)
    (service,) = of_kind(found, "RayService")
    assert service["spec"]["upgradeStrategy"]["clusterUpgradeOptions"]["stepSizePercent"] == 20
    # KubeRay's own Gateway, named after the RayService, splits the calls; whoever calls past it would not be split.
    assert "headwaiter" not in {each["metadata"]["name"] for each in of_kind(found, "Service")}
    (policy,) = (each for each in of_kind(found, "NetworkPolicy") if each["metadata"]["name"] == "headwaiter")
    gateway = {"gateway.networking.k8s.io/gateway-name": f"{service['metadata']['name']}-gateway"}
    assert {"from": [{"podSelector": {"matchLabels": gateway}}], "ports": [{"port": 8000}]} in policy["spec"]["ingress"]


def test_a_head_that_dies_is_remembered(documents: Callable[[str], list[Document]]) -> None:
    for name in ("cpu", "gpu"):
        (service,) = of_kind(documents(name), "RayService")
        memory = service["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
        assert memory["redisAddress"].partition(":")[0] in {
            each["metadata"]["name"] for each in of_kind(documents(name), "Service")
        }
