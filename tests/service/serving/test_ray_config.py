from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from ray.serve.config import gRPCOptions
from ray.serve.schema import ServeDeploySchema
from typer.testing import CliRunner

from headwaiter.api.keys import format_key_line, make_key
from headwaiter.cli.serve import add_commands
from headwaiter.serving.config import load_config
from headwaiter.serving.ray_config import SERVICERS, render
from tests.serving_kit import write_config, write_package

RayConfig = dict[str, Any]
BASE: dict[str, Any] = {
    "models": {
        "one": {"path": "models/one"},
        "two": {"path": "models/two", "autoscale": {"min": 2, "max": 4}},
    }
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_package(tmp_path / "models", "one")
    write_package(tmp_path / "models", "two", task="detection")
    (tmp_path / "keys.txt").write_text(format_key_line("alice", make_key()))
    return tmp_path


def _render(folder: Path, **model: Any) -> RayConfig:
    """Render BASE with additional keys of model `one`."""
    content = copy.deepcopy(BASE)
    content["models"]["one"].update(model)
    return render(load_config(write_config(folder / "serve.yaml", content)))


def _applications(rendered: RayConfig) -> dict[str, RayConfig]:
    return {application["name"]: application for application in rendered["applications"]}


def _deployment(rendered: RayConfig, name: str) -> RayConfig:
    (deployment,) = _applications(rendered)[name]["deployments"]
    return deployment


def test_render_is_valid_for_ray_serve(folder: Path) -> None:
    accepted = ServeDeploySchema.model_validate(_render(folder))

    assert [application.name for application in accepted.applications] == ["catalog", "one", "two"]
    prefixes = [application.route_prefix for application in accepted.applications]
    assert prefixes == ["/", "/models/one", "/models/two"]


def test_render_survives_yaml_and_json(folder: Path) -> None:
    rendered = _render(folder)

    assert yaml.safe_load(yaml.safe_dump(rendered)) == json.loads(json.dumps(rendered)) == rendered


def test_render_model_args(folder: Path) -> None:
    args = _applications(_render(folder, max_sequences=4, resources={"cpus": 1.5}, limits={"text": 9}))["one"]["args"]

    fingerprint = args.pop("fingerprint")
    assert len(fingerprint) == 64
    assert args == {
        "name": "one",
        "folder": str(folder / "models/one/1/fp32"),
        "settings": {
            "device": "cpu",
            "threads": 2,
            "max_sequences": 4,
            "run_timeout_s": 120,
            "batch": {"tokens": 512, "pixels": 200_704},
            "limits": {
                "max_queue_wait_ms": 2000,
                "text": 9,
                "new_tokens": 256,
                "num_beams": 4,  # capped by max_sequences
                "pixels": 32_000_000,
                "request_pixels": 256_000_000,
                "prepared_mb": 512,
                "images": 64,
                "message_mb": 32,
                "concurrent_mb": 256,
            },
        },
        "local": True,
        "keys": None,
        "metrics": {"host": "127.0.0.1", "port": 8080},
    }


def test_render_catalog_args(folder: Path) -> None:
    args = _applications(_render(folder))["catalog"]["args"]

    assert args == {
        "models": [
            {"name": "one", "task": "translation", "version": "1"},
            {"name": "two", "task": "detection", "version": "1"},
        ],
        "local": True,
        "keys": None,
        "metrics": {"host": "127.0.0.1", "port": 8080},
    }


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("auto", 0, "cpu"), ("auto", 0.5, "auto"), ("cuda", 1, "cuda"), ("cpu", 0, "cpu"), ("cpu", 1, "cpu")],
)
def test_render_device_depends_on_gpus(folder: Path, device: str, gpus: float, expected: str) -> None:
    rendered = _render(folder, device=device, resources={"gpus": gpus})

    assert _applications(rendered)["one"]["args"]["settings"]["device"] == expected
    assert _deployment(rendered, "one")["ray_actor_options"]["num_gpus"] == gpus


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({}, {"num_replicas": 1}),
        ({"replicas": 3}, {"num_replicas": 3}),
        (
            {"autoscale": {"max": 8}},
            {"min_replicas": 1, "max_replicas": 8, "target": 0.7, "scale_down_delay_seconds": 300},
        ),
        (
            {
                "autoscale": {"min": 2, "max": 8, "target": 0.5, "scale_down_delay_s": 60},
                "limits": {"max_queue_wait_ms": 500},
            },
            {"min_replicas": 2, "target": 0.5, "max_wait_seconds": 0.25, "scale_down_delay_seconds": 60},
        ),
        ({"autoscale": {"min": 0, "max": 8}}, {"min_replicas": 0, "initial_replicas": 1}),
        ({"resources": {"cpus": 2}}, {"num_cpus": 2, "num_gpus": 0}),
        ({}, {"max_ongoing_requests": 10_000, "max_queued_requests": -1}),
        ({}, {"max_surge_percent": 25}),
        ({"resources": {"gpus": 1}}, {"max_surge_percent": 0}),
    ],
)
def test_render_deployment_options(folder: Path, model: dict[str, Any], options: dict[str, Any]) -> None:
    deployment = _deployment(_render(folder, **model), "one")

    scaling = deployment.get("autoscaling_config", {})
    policy = scaling.get("policy", {}).get("policy_kwargs", {})
    flat = {**deployment, **deployment["ray_actor_options"], **scaling, **policy}
    assert {key: flat[key] for key in options} == pytest.approx(options)


def test_serve_command_render_uses_paths_on_nodes(folder: Path) -> None:
    file = write_config(folder / "serve.yaml", {**BASE, "auth": {"keys": "keys.txt"}})
    paths = ["--models-at", "/models", "--keys-at", "/etc/headwaiter/keys.txt"]

    result = CliRunner().invoke(_commands(), ["serve", str(file), "--render", *paths])

    applications = _applications(yaml.safe_load(result.stdout))
    assert applications["one"]["args"]["folder"] == "/models/one/1/fp32"
    assert {application["args"]["keys"] for application in applications.values()} == {"/etc/headwaiter/keys.txt"}
    assert CliRunner().invoke(_commands(), ["serve", str(file), *paths]).exit_code == 2


def test_render_grpc_message_size_exceeds_limit(folder: Path) -> None:
    application = _applications(_render(folder, limits={"message_mb": 3}))["one"]

    (size,) = application["runtime_env"]["env_vars"].values()
    assert int(size) > 3 * 1024 * 1024


def test_render_catalog_takes_messages_of_one_mebibyte(folder: Path) -> None:
    (size,) = _applications(_render(folder))["catalog"]["runtime_env"]["env_vars"].values()

    assert int(size) == 2 * 1024 * 1024  # twice the limit, so that the catalog itself rejects larger ones


def test_render_passes_keys_to_every_application(folder: Path) -> None:
    service = load_config(write_config(folder / "serve.yaml", {**BASE, "auth": {"keys": "keys.txt"}}))

    for application in render(service)["applications"]:
        assert application["args"]["keys"] == str(folder / "keys.txt")


@pytest.mark.parametrize(
    ("package", "model", "changed"),
    [
        ({}, {}, set()),
        ({"version": "2"}, {}, {"one", "catalog"}),
        ({"source": "exported again"}, {}, {"one"}),
        ({}, {"limits": {"text": 100}}, {"one"}),
        ({}, {"limits": {"message_mb": 1}}, {"one"}),
        ({}, {"max_sequences": 8}, {"one"}),
        ({}, {"replicas": 2}, set()),  # scaled without replacing replicas
    ],
)
def test_render_changes_args_of_changed_models_only(
    folder: Path, package: dict[str, Any], model: dict[str, Any], changed: set[str]
) -> None:
    def args(rendered: RayConfig) -> dict[str, Any]:
        applications = _applications(rendered)
        return {name: (config["args"], config.get("runtime_env")) for name, config in applications.items()}

    before = args(_render(folder))

    write_package(folder / "models", "one", **package)
    after = args(_render(folder, **model))

    assert {name for name in after if after[name] != before[name]} == changed


def test_servicers_are_importable() -> None:
    options = gRPCOptions(grpc_servicer_functions=SERVICERS)

    assert len(options.grpc_servicer_func_callable) == len(SERVICERS) == 10


def test_serve_command_render_prints_yaml(folder: Path) -> None:
    rendered = _render(folder)

    result = CliRunner().invoke(_commands(), ["serve", str(folder / "serve.yaml"), "--render"])

    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == rendered
    assert result.stdout.startswith("# For serveConfigV2. Every Ray node needs in its environment:\n#   RAY_SERVE_")


def test_serve_command_invalid_file_exits_2(folder: Path) -> None:
    file = write_config(folder / "serve.yaml", "models: {one: {path: models/none}}")

    result = CliRunner().invoke(_commands(), ["serve", str(file), "--render"])

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"✗ {file}: models.one: {folder}/models/none ")
    assert "`headwaiter export`" in result.stderr
    assert result.stderr.count("\n") == 1


def _commands() -> typer.Typer:
    app = typer.Typer()
    add_commands(app)
    return app
