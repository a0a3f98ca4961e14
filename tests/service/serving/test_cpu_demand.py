"""CPUs that a changed serve.yaml needs, from the rendered configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwaiter.serving.config import load_config
from headwaiter.serving.cpu_demand import check_cpus, cpu_demands
from headwaiter.serving.errors import PreconditionError
from headwaiter.serving.ray_config import render
from tests.serving_kit import write_config, write_package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_package(tmp_path / "models", name)
    return tmp_path


def _applications(folder: Path, **models: dict[str, Any]) -> list[dict[str, Any]]:
    content = {"models": {name: {"path": f"models/{name}", **options} for name, options in models.items()}}
    applications: list[dict[str, Any]] = render(load_config(write_config(folder / "serve.yaml", content)))[
        "applications"
    ]
    return applications


def _running(**replicas: int) -> dict[str, Any]:
    return {name: {"deployments": {"model": {"target_num_replicas": count}}} for name, count in replicas.items()}


def test_cpu_demands_new_models_need_their_initial_replicas(folder: Path) -> None:
    applications = _applications(
        folder,
        one={"resources": {"cpus": 0.5}, "replicas": 3},
        two={"resources": {"cpus": 2}, "autoscale": {"min": 2, "max": 9}},
    )
    demands = cpu_demands(applications, {}, set())
    assert {demand.name: demand.cpus for demand in demands} == {"one": 1.5, "two": 4}


def test_cpu_demands_changed_model_needs_one_replica_more_per_four(folder: Path) -> None:
    applications = _applications(folder, one={"replicas": 5}, two={"replicas": 4})
    running = _running(catalog=1, one=5, two=4)
    demands = cpu_demands(applications, running, {"catalog", "two"})
    assert {demand.name: (demand.replicas, demand.surge) for demand in demands} == {"one": (5, 2), "two": (4, 0)}


def test_cpu_demands_changed_gpu_model_needs_no_surge(folder: Path) -> None:
    applications = _applications(folder, one={"resources": {"cpus": 1, "gpus": 1}})
    (demand,) = cpu_demands(applications, _running(one=1), set())
    assert demand.cpus == 1


def test_cpu_demands_unchanged_autoscaled_model_keeps_its_replicas(folder: Path) -> None:
    applications = _applications(folder, one={"autoscale": {"min": 1, "max": 9}})
    (demand,) = cpu_demands(applications, _running(catalog=1, one=6), {"catalog", "one"})
    assert demand.cpus == 6


def test_check_cpus_too_few_states_the_sum_per_model(folder: Path) -> None:
    applications = _applications(folder, one={}, two={"resources": {"cpus": 2}, "replicas": 2})
    demands = cpu_demands(applications, _running(one=1), set())
    check_cpus(demands, available=6)
    with pytest.raises(PreconditionError) as caught:
        check_cpus(demands, available=5)
    assert str(caught.value).startswith(
        "The models need 6 CPUs (one 2 (1 × 1, 1 more replica for the update), two 4 (2 × 2)) and the running Ray has 5"
    )
