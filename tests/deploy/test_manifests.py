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
from deploy.overlay import K8S, STORE, manifests, write_overlay
from headwaiter.serving.ray_compat import NODE_ENVIRONMENT
from tests.deploy.manifests_kit import (
    OVERLAYS,
    containers,
    named,
    of_kind,
    pods,
    public_service,
    ray_pods,
    selected,
)
from tests.deploy.schemas_kit import Document, validate

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def version() -> str:
    return str(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"])


def test_overlays_are_complete() -> None:
    assert OVERLAYS == ["cpu", "gpu", "minimal"]


def test_manifests_match_schemas(rendered: list[Document]) -> None:
    for document in rendered:
        validate(document)


@pytest.mark.parametrize("kind", ["RayService", "NetworkPolicy", "PrometheusRule"])
def test_validate_unknown_field_raises(documents: Callable[[str], list[Document]], kind: str) -> None:
    (document, *_) = of_kind(documents("cpu"), kind)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate({**document, "spec": {**document["spec"], "replcas": 1}})


def test_serve_config_is_valid_for_ray_serve(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    folders = {app.name: app.args.get("folder", "") for app in config.applications}
    assert folders["opus-mt-zh-en"].startswith("/models/opus-mt-zh-en/1/")
    assert config.http_options.host == "0.0.0.0"


def test_cpu_overlay_serves_example_models_with_sufficient_workers(documents: Callable[[str], list[Document]]) -> None:
    (service,) = of_kind(documents("cpu"), "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    example = yaml.safe_load((K8S.parent / "serve.yaml").read_text(encoding="utf-8"))["models"]
    models = {app["name"]: app["deployments"][0] for app in config["applications"] if app["name"] != "catalog"}
    assert models.keys() == example.keys()
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    cpus = int(workers["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    for bound in ("min", "max"):
        requested = sum(
            deployment["autoscaling_config"][f"{bound}_replicas"] * deployment["ray_actor_options"]["num_cpus"]
            for deployment in models.values()
        )
        assert workers[f"{bound}Replicas"] == ceil(requested / cpus)


def test_ports_match_serve_config(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    served = {"grpc": config["grpc_options"]["port"], "http": config["http_options"]["port"]}
    metrics = {app["args"]["metrics"]["port"] for app in config["applications"]}
    _, worker = ray_pods(rendered)
    container_ports = {port["name"]: port["containerPort"] for port in worker["spec"]["containers"][0]["ports"]}
    assert container_ports == {**served, "metrics": metrics.pop()}
    assert {port["name"]: (port["port"], port["targetPort"]) for port in public_service(rendered)["spec"]["ports"]} == {
        name: (number, name) for name, number in served.items()
    }


def test_ray_pods_have_node_environment(rendered: list[Document]) -> None:
    for pod in ray_pods(rendered):
        (ray,) = pod["spec"]["containers"]
        assert {variable["name"]: variable["value"] for variable in ray["env"]}.items() >= NODE_ENVIRONMENT.items()


def test_references_of_pods_exist(rendered: list[Document]) -> None:
    existing = {(document["kind"], document["metadata"]["name"]) for document in rendered}
    for pod in ray_pods(rendered):
        spec = pod["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in existing
    for container in containers(rendered):
        for source in container.get("envFrom", []):
            assert ("ConfigMap", source["configMapRef"]["name"]) in existing


def test_pods_fetch_served_packages_only(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    folders = {app["args"]["folder"] for app in config["applications"] if "folder" in app["args"]}
    (packages,) = (config["data"] for config in of_kind(rendered, "ConfigMap") if "PACKAGES" in config["data"])
    assert {f"/models/{name}" for name in packages["PACKAGES"].split()} == folders


def test_readiness_probe_checks_always_running_models(copy: Path) -> None:
    file = copy / "serve.yaml"
    config = yaml.safe_load(file.read_text())
    config["models"]["topics-bert"]["autoscale"]["min"] = 0
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    write_overlay(copy)
    documents = manifests(copy)
    (packages,) = (document for document in of_kind(documents, "ConfigMap") if "APPLICATIONS" in document["data"])
    always_running = [name for name in config["models"] if name != "topics-bert"]
    assert packages["data"]["APPLICATIONS"].split() == ["catalog", *always_running]
    _, worker = ray_pods(documents)
    (ray,) = worker["spec"]["containers"]
    assert ray["envFrom"] == [{"configMapRef": {"name": packages["metadata"]["name"]}}]
    command = ray["readinessProbe"]["exec"]["command"][-1]
    assert command.endswith("headwaiter.serving.probe localhost:9000 $APPLICATIONS")


def test_containers_are_unprivileged_and_pinned(rendered: list[Document]) -> None:
    for pod in pods(rendered):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in containers(rendered):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert ":" in container["image"]
        assert not container["image"].endswith(":latest")
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


def test_network_policy_opens_replica_ports_to_ray_pods_only(rendered: list[Document]) -> None:
    policy = named(rendered, "NetworkPolicy", "headwaiter")
    assert selected(policy["spec"]["podSelector"], rendered) == ["head", "worker"]
    from_any_source = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    to_any_port = [rule["from"] for rule in policy["spec"]["ingress"] if "ports" not in rule]
    assert from_any_source == []
    assert to_any_port == [[{"podSelector": policy["spec"]["podSelector"]}]]


def test_service_selects_workers_by_own_labels(rendered: list[Document]) -> None:
    """KubeRay uses its own labels and those of `app.kubernetes.io` to find the head, so pods must not set them."""
    assert selected(public_service(rendered)["spec"]["selector"], rendered) == ["worker"]
    (service,) = of_kind(rendered, "RayService")
    head, worker = ray_pods(rendered)
    assert not [key for key in (*head["metadata"]["labels"], *worker["metadata"]["labels"]) if "/" in key]
    # KubeRay creates its own Service from this port and waits for it; other ports are dropped.
    assert "serveService" not in service["spec"]
    assert {"name": "serve", "containerPort": 8000} in head["spec"]["containers"][0]["ports"]


def test_pod_monitor_selects_head_and_workers(documents: Callable[[str], list[Document]]) -> None:
    (monitor,) = of_kind(documents("cpu"), "PodMonitor")
    assert selected(monitor["spec"]["selector"], documents("cpu")) == ["head", "worker"]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_disruption_budget_allows_one_missing_worker(documents: Callable[[str], list[Document]], name: str) -> None:
    """For pods owned by a custom resource, Kubernetes supports an absolute `minAvailable` only."""
    (service,) = of_kind(documents(name), "RayService")
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    budgets = [document["spec"] for document in of_kind(documents(name), "PodDisruptionBudget")]
    (budget,) = (budget for budget in budgets if selected(budget["selector"], documents(name)))
    assert selected(budget["selector"], documents(name)) == ["worker"]
    assert budget == {"selector": budget["selector"], "minAvailable": workers["minReplicas"] - 1}


def test_gpu_overlay_has_sufficient_gpus(documents: Callable[[str], list[Document]]) -> None:
    (service,) = of_kind(documents("gpu"), "RayService")
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    worker = workers["template"]["spec"]
    assert worker["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    models = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][1:]
    deployments = [model["deployments"][0] for model in models]
    gpus = [
        deployment["autoscaling_config"]["max_replicas"] * deployment["ray_actor_options"]["num_gpus"]
        for deployment in deployments
    ]
    assert workers["maxReplicas"] == ceil(sum(gpus))


@pytest.mark.parametrize(("name", "device"), [("minimal", "cpu"), ("cpu", "cpu"), ("gpu", "cuda")])
@pytest.mark.parametrize("registry", ["", "registry.test/"])
def test_images_have_current_version(copy: Path, version: str, name: str, device: str, registry: str) -> None:
    folder = copy.with_name(name)
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("newName: headwaiter", f"newName: {registry}headwaiter"))
    write_overlay(folder)
    specs = [pod["spec"] for pod in ray_pods(manifests(folder))]
    images = {container["image"] for spec in specs for container in (*spec["initContainers"], *spec["containers"])}
    assert images == {f"{registry}headwaiter:{version}-{device}"}


@pytest.mark.parametrize(
    ("folder", "mode"), [("deploy/k8s/store", "ReadWriteMany"), ("deploy/k8s/store-one-node", "ReadWriteOnce")]
)
def test_store_has_volume_and_pod(tree: Path, version: str, folder: str, mode: str) -> None:
    documents = manifests(tree / folder)
    for document in documents:
        validate(document)
    (claim,), (pod,) = of_kind(documents, "PersistentVolumeClaim"), of_kind(documents, "Pod")
    assert claim["spec"]["accessModes"] == [mode]
    (container,), (volume,) = pod["spec"]["containers"], pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["image"] == f"headwaiter:{version}-cpu"
    assert STORE.startswith(container["volumeMounts"][0]["mountPath"] + "/")


def test_workers_have_no_permissions_and_no_token(rendered: list[Document]) -> None:
    head, worker = (pod["spec"] for pod in ray_pods(rendered))
    bound = {subject["name"] for binding in of_kind(rendered, "RoleBinding") for subject in binding["subjects"]}
    assert bound == {head["serviceAccountName"]}
    assert worker["serviceAccountName"] not in bound
    assert worker["automountServiceAccountToken"] is False


def test_network_policy_admits_labelled_clients(rendered: list[Document]) -> None:
    policy = named(rendered, "NetworkPolicy", "headwaiter")
    client = {"podSelector": {"matchLabels": {"headwaiter-client": "true"}}}
    (rule,) = (rule for rule in policy["spec"]["ingress"] if client in rule["from"])
    service_ports = {port["port"] for port in public_service(rendered)["spec"]["ports"]}
    assert {port["port"] for port in rule["ports"]} == service_ports


def test_gateway_config_matches_manifests(documents: Callable[[str], list[Document]]) -> None:
    rendered = documents("cpu")
    config_maps = [document["data"] for document in of_kind(rendered, "ConfigMap")]
    (config,) = (yaml.safe_load(data["envoy.yaml"]) for data in config_maps if "envoy.yaml" in data)
    service = public_service(rendered)
    upstreams = {
        (address["address"], address["port_value"])
        for cluster in config["static_resources"]["clusters"]
        for group in cluster["load_assignment"]["endpoints"]
        for address in (item["endpoint"]["address"]["socket_address"] for item in group["lb_endpoints"])
    }
    assert upstreams == {(service["metadata"]["name"], port["port"]) for port in service["spec"]["ports"]}
    (pod,) = (deployment["spec"]["template"]["spec"] for deployment in of_kind(rendered, "Deployment"))
    (listener,) = config["static_resources"]["listeners"]
    assert pod["containers"][0]["ports"][0]["containerPort"] == listener["address"]["socket_address"]["port_value"]
    mounted = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    context = listener["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    assert str(Path(context["tls_certificates"][0]["private_key"]["filename"]).parent) in mounted


def test_terminating_pod_outlives_gateway_connections(rendered: list[Document]) -> None:
    (service,) = of_kind(rendered, "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    drain_seconds = max(app["deployments"][0]["graceful_shutdown_timeout_s"] for app in config["applications"])
    for pod in ray_pods(rendered):
        (program, seconds) = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "sleep"
        assert int(seconds) > Upstream().connection_seconds
        assert pod["spec"]["terminationGracePeriodSeconds"] > int(seconds) + drain_seconds


def test_incremental_upgrade_component(tree: Path, documents: Callable[[str], list[Document]]) -> None:
    documents("cpu")
    folder = tree / "deploy/k8s/stepwise"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text("resources: [../cpu]\ncomponents: [../incremental]\n")
    rendered = manifests(folder)
    for document in rendered:
        validate(document)
    (service,) = of_kind(rendered, "RayService")
    assert service["spec"]["upgradeStrategy"]["clusterUpgradeOptions"]["stepSizePercent"] == 20
    # KubeRay's own Gateway, named after the RayService, splits the traffic; the Service would bypass it.
    assert "headwaiter" not in {document["metadata"]["name"] for document in of_kind(rendered, "Service")}
    policy = named(rendered, "NetworkPolicy", "headwaiter")
    gateway = {"gateway.networking.k8s.io/gateway-name": f"{service['metadata']['name']}-gateway"}
    assert {"from": [{"podSelector": {"matchLabels": gateway}}], "ports": [{"port": 8000}]} in policy["spec"]["ingress"]


def test_head_state_is_stored_in_redis(documents: Callable[[str], list[Document]]) -> None:
    for name in ("cpu", "gpu"):
        (service,) = of_kind(documents(name), "RayService")
        options = service["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
        services = {document["metadata"]["name"] for document in of_kind(documents(name), "Service")}
        assert options["redisAddress"].partition(":")[0] in services
