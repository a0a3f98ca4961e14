from __future__ import annotations

import copy
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from ray.serve.config import gRPCOptions
from ray.serve.schema import ServeDeploySchema
from typer.testing import CliRunner

from service.config import load
from service.hints import commands
from service.keys import line_for, make_key
from service.rendering import SERVICERS, render
from service.serving import Voice, add_commands, remark
from tests.serving_kit import write_config, write_package

Rendered = dict[str, Any]
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
    (tmp_path / "keys.txt").write_text(line_for("alice", make_key()))
    return tmp_path


def _render(folder: Path, **model: Any) -> Rendered:
    """With the given keys in model `one`."""
    content = copy.deepcopy(BASE)
    content["models"]["one"].update(model)
    return render(load(write_config(folder / "serve.yaml", content)))


def _applications(rendered: Rendered) -> dict[str, Rendered]:
    return {each["name"]: each for each in rendered["applications"]}


def _deployment(rendered: Rendered, name: str) -> Rendered:
    (deployment,) = _applications(rendered)[name]["deployments"]
    return deployment


def test_ray_accepts_it(folder: Path) -> None:
    accepted = ServeDeploySchema.model_validate(_render(folder))

    assert [each.name for each in accepted.applications] == ["catalog", "one", "two"]
    assert [each.route_prefix for each in accepted.applications] == ["/", "/models/one", "/models/two"]


def test_it_survives_yaml_and_json(folder: Path) -> None:
    """KubeRay takes it as text."""
    rendered = _render(folder)

    assert yaml.safe_load(yaml.safe_dump(rendered)) == json.loads(json.dumps(rendered)) == rendered


def test_what_a_replica_is_told(folder: Path) -> None:
    args = _applications(_render(folder, rows=4, resources={"cpus": 1.5}, limits={"text": 9}))["one"]["args"]

    fingerprint = args.pop("fingerprint")
    assert len(fingerprint) == 64
    assert args == {
        "name": "one",
        "folder": str(folder / "models/one/1/fp32"),
        "device": "cpu",
        "threads": 2,
        "rows": 4,
        "batch": {"tokens": 512, "pixels": 200_704},
        "limits": {
            "wait_ms": 2000,
            "text": 9,
            "new_tokens": 256,
            "beams": 4,  # no more than rows
            "pixels": 32_000_000,
            "images": 64,
            "message_mb": 32,
        },
        "local": True,
        "keys": None,
        "metrics": {"host": "127.0.0.1", "port": 8080},
    }


def test_what_the_catalog_is_told(folder: Path) -> None:
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
    ("device", "gpus", "told"),
    [("auto", 0, "cpu"), ("auto", 0.5, "auto"), ("cuda", 1, "cuda"), ("cpu", 0, "cpu"), ("cpu", 1, "cpu")],
)
def test_a_gpu_is_used_only_where_one_is_asked_for(folder: Path, device: str, gpus: float, told: str) -> None:
    rendered = _render(folder, device=device, resources={"gpus": gpus})

    assert _applications(rendered)["one"]["args"]["device"] == told
    assert _deployment(rendered, "one")["ray_actor_options"]["num_gpus"] == gpus


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({}, {"num_replicas": 1}),
        ({"replicas": 3}, {"num_replicas": 3}),
        ({"autoscale": {"max": 8}}, {"min_replicas": 1, "max_replicas": 8, "target": 0.7, "shrink_seconds": 300}),
        (
            {"autoscale": {"min": 2, "max": 8, "target": 0.5, "shrink_s": 60}, "limits": {"wait_ms": 500}},
            {"min_replicas": 2, "target": 0.5, "patience_seconds": 0.25, "shrink_seconds": 60},
        ),
        ({"autoscale": {"min": 0, "max": 8}}, {"min_replicas": 0, "initial_replicas": 1}),
        ({"resources": {"cpus": 2}}, {"num_cpus": 2, "num_gpus": 0}),
        ({}, {"max_ongoing_requests": 10_000, "max_queued_requests": -1}),
        ({}, {"max_surge_percent": 25}),
        ({"resources": {"gpus": 1}}, {"max_surge_percent": 0}),
    ],
)
def test_options(folder: Path, model: dict[str, Any], options: dict[str, Any]) -> None:
    deployment = _deployment(_render(folder, **model), "one")

    scaling = deployment.get("autoscaling_config", {})
    policy = scaling.get("policy", {}).get("policy_kwargs", {})
    flat = {**deployment, **deployment["ray_actor_options"], **scaling, **policy}
    assert {key: flat[key] for key in options} == pytest.approx(options)


def test_a_cluster_has_packages_and_keys_elsewhere(folder: Path) -> None:
    file = write_config(folder / "serve.yaml", {**BASE, "auth": {"keys": "keys.txt"}})
    there = ["--models-at", "/models", "--keys-at", "/etc/headwaiter/keys.txt"]

    result = CliRunner().invoke(_commands(), ["serve", str(file), "--render", *there])

    applications = _applications(yaml.safe_load(result.stdout))
    assert applications["one"]["args"]["folder"] == "/models/one/1/fp32"
    assert {each["args"]["keys"] for each in applications.values()} == {"/etc/headwaiter/keys.txt"}
    assert CliRunner().invoke(_commands(), ["serve", str(file), *there]).exit_code == 2


def test_larger_messages_than_allowed_still_reach_our_own_refusal(folder: Path) -> None:
    application = _applications(_render(folder, limits={"message_mb": 3}))["one"]

    (size,) = application["runtime_env"]["env_vars"].values()
    assert int(size) > 3 * 1024 * 1024


def test_keys_reach_every_application(folder: Path) -> None:
    service = load(write_config(folder / "serve.yaml", {**BASE, "auth": {"keys": "keys.txt"}}))

    for application in render(service)["applications"]:
        assert application["args"]["keys"] == str(folder / "keys.txt")


@pytest.mark.parametrize(
    ("package", "model", "told"),
    [
        ({}, {}, set()),
        ({"version": "2"}, {}, {"one", "catalog"}),
        ({"source": "exported again"}, {}, {"one"}),
        ({}, {"limits": {"text": 100}}, {"one"}),
        ({}, {"limits": {"message_mb": 1}}, {"one"}),
        ({}, {"rows": 8}, {"one"}),
        ({}, {"replicas": 2}, set()),  # scaled where it stands
    ],
)
def test_only_what_changed_is_told(
    folder: Path, package: dict[str, Any], model: dict[str, Any], told: set[str]
) -> None:
    def args(rendered: Rendered) -> dict[str, Any]:
        return {name: (each["args"], each.get("runtime_env")) for name, each in _applications(rendered).items()}

    before = args(_render(folder))

    write_package(folder / "models", "one", **package)
    after = args(_render(folder, **model))

    assert {name for name in after if after[name] != before[name]} == told


def test_every_servicer_can_be_imported() -> None:
    options = gRPCOptions(grpc_servicer_functions=SERVICERS)

    assert len(options.grpc_servicer_func_callable) == len(SERVICERS) == 9


def test_the_command_prints_it_and_deploys_nothing(folder: Path) -> None:
    rendered = _render(folder)

    result = CliRunner().invoke(_commands(), ["serve", str(folder / "serve.yaml"), "--render"])

    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == rendered
    assert result.stdout.startswith("# For serveConfigV2. Every Ray node needs in its environment:\n#   RAY_SERVE_")


def test_the_command_refuses_what_is_wrong(folder: Path) -> None:
    file = write_config(folder / "serve.yaml", "models: {one: {path: models/none}}")

    result = CliRunner().invoke(_commands(), ["serve", str(file), "--render"])

    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        result.stderr
        == f"✗ {file}: models.one: {folder}/models/none is not there; `headwaiter export` makes model packages.\n"
    )


def _commands() -> typer.Typer:
    app = typer.Typer()
    add_commands(app)
    return app


@pytest.mark.parametrize(
    ("manifest", "call", "curl", "python"),
    [
        (
            {"languages": {"source": "zh"}},
            "translate '服务器崩溃了，请稍后再试。'",
            '{"text": "服务器',
            '.translate("one", "服务器',
        ),
        ({}, "translate 'Good morning.'", '{"text": "Good morning."}', '.translate("one", "Good morning.").text)'),
        ({"task": "generation"}, "generate 'Once upon", '{"prompt": "Once upon a time"}', '.generate("one", "Once'),
        (
            {"task": "generation", "noise": 8},
            "generate-images --count 4",
            "/generate-images -H 'content-type: application/json' -d '{\"count\": 4}",
            '.generate_images("one", count=4).images)',
        ),
        (
            {"task": "captioning"},
            "caption samples/scene-1.png",
            "image=@samples/scene-1.png",
            '.caption("one", "samples/scene-1.png").text)',
        ),
        (
            {"task": "detection"},
            "detect samples/scene-1.png",
            "image=@samples/scene-1.png",
            '.detect("one", "samples/scene-1.png").boxes)',
        ),
        ({"task": "classification"}, "classify 'That was", '{"text": "That was', '.classify("one", text="That was'),
        ({"task": "policy"}, "call one describe", "/models/one", '.describe("one"))'),
    ],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_commands_to_paste(
    folder: Path,
    manifest: dict[str, Any],
    call: str,
    curl: str,
    python: str,
    keyed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(Path(__file__).parents[2])  # where the samples are
    write_package(folder / "models", "one", **manifest)
    auth = {"auth": {"keys": "keys.txt"}} if keyed else {}
    service = load(write_config(folder / "serve.yaml", {**BASE, **auth, "http": {"port": 8001}}))

    first, second, third = commands(service)

    assert (first.startswith("headwaiter call one "), call in first) == (True, True)
    assert (second.startswith("curl "), curl in second, "http://localhost:8001/models/one" in second) == (True,) * 3
    assert (third.startswith("python -c "), python in third) == (True, True)
    assert all(("HEADWAITER_KEY" in each) == keyed for each in (second, third))
    compile(shlex.split(third)[2], "pasted", "exec")


def test_commands_name_the_way_to_an_installation_that_is_not_on_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(Path(sys.executable).parents[2])
    first, _, third = commands(load(write_config(folder / "serve.yaml", BASE)))
    assert first.startswith(str(Path(*Path(sys.executable).parts[-3:-1], "headwaiter call")))
    assert third.startswith(str(Path(*Path(sys.executable).parts[-3:-1], "python -c")))


def test_who_may_call_is_said_wherever_it_is_served(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_package(folder / "models", "one")
    here = load(write_config(folder / "serve.yaml", {**BASE}))
    remark(here, Voice())
    assert capsys.readouterr().err == ""
    everywhere = load(write_config(folder / "serve.yaml", {**BASE, "http": {"host": "0.0.0.0"}}))
    remark(everywhere, Voice())
    assert "Whoever reaches port 9000 or 8000 may call: no keys are set" in capsys.readouterr().err
