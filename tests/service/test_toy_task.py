"""A task of another distribution: a proto, a module, a row and a request builder are all that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import requests
from onnx import TensorProto, helper
from safetensors.numpy import save_file

from headwaiter.package.manifest import WEIGHTS, Graph, Port, digest
from loadtest.service_process import ServiceProcess, running_service
from protos.generate import PROTOS
from tests.serving_kit import write_package

_SOURCES = Path(__file__).parents[1] / "data" / "reversal"
_HEADWAITER = str(Path(sys.executable).parent / "headwaiter")
_TIMEOUT_SECONDS = 120
_PYTHONPATH = os.environ["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in os.environ else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed distribution: modules, generated stubs and an entry point."""
    from grpc_tools import protoc

    folder = tmp_path_factory.mktemp("site")
    for file in _SOURCES.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    arguments = [f"-I{_SOURCES}", f"-I{PROTOS}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", *arguments, str(_SOURCES / "reversal.proto")]) == 0
    metadata = folder / "reversal-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: reversal\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[headwaiter.tasks]\nreversal = reversal_spec:SPEC\n")
    return folder


@pytest.fixture(scope="module")
def service(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service of the toy task. Every process that is started while it runs finds the distribution."""
    folder = tmp_path_factory.mktemp("toy")
    model = _write_model(folder / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), *_PYTHONPATH]))
        with running_service(folder, {"mirror": {"path": str(model)}}, options=("--single-process",)) as running:
            yield running


def _write_model(models: Path) -> Path:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["lengths"], ["lengths64"], to=TensorProto.INT64),
            helper.make_node("ReverseSequence", ["tokens", "lengths64"], ["reversed"], batch_axis=0, time_axis=1),
        ],
        "model",
        [
            helper.make_tensor_value_info("tokens", TensorProto.INT64, ["rows", "length"]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["rows"]),
        ],
        [helper.make_tensor_value_info("reversed", TensorProto.INT64, ["rows", "length"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    folder = models / "mirror" / "1" / "fp32"
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    save_file({}, folder / WEIGHTS)
    description = Graph(
        file="model.onnx",
        inputs=(
            Port(name="tokens", dtype="int64", shape=("rows", "length")),
            Port(name="lengths", dtype="int32", shape=("rows",)),
        ),
        outputs=(Port(name="reversed", dtype="int64", shape=("rows", "length")),),
        nodes=2,
        attention=0,
        fused=0,
    )
    return write_package(
        models,
        "mirror",
        task="reversal",
        family="mirror",
        graphs={"model": description},
        limits={"length": 100},
        sha256={file.name: digest(file) for file in folder.iterdir()},
    )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)


def _call(service: ServiceProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _run(_HEADWAITER, "call", "mirror", *arguments, "--address", service.grpc)


def test_toy_task_answers_over_grpc(service: ServiceProcess) -> None:
    code = f"""
from headwaiter.client import Client
with Client("{service.grpc}") as client:
    print(*[result.text for result in client.call("mirror", "Reverse", {{"text": ["stressed", "größe"]}}).results])
"""
    completed = _run(sys.executable, "-c", code)
    assert completed.stdout == "desserts eßörg\n", completed.stderr


def test_toy_task_answers_over_http(service: ServiceProcess) -> None:
    url = f"{service.http}/models/mirror"
    response = requests.post(f"{url}/reverse", json={"text": ["stressed", ""]}, timeout=_TIMEOUT_SECONDS)
    assert [result["text"] for result in response.json()["results"]] == ["desserts", ""]
    operation = requests.get(f"{url}/openapi.json", timeout=_TIMEOUT_SECONDS).json()["paths"]["/reverse"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert requests.post(f"{url}/reverse", json=example, timeout=_TIMEOUT_SECONDS).status_code == 200


def test_toy_task_answers_on_command_line(service: ServiceProcess) -> None:
    completed = _call(service, "reverse", "--text", "stressed", "--text", "live")
    assert [result["text"] for result in json.loads(completed.stdout)["results"]] == ["desserts", "evil"]


def test_toy_task_invalid_input_names_field_and_limit(service: ServiceProcess) -> None:
    completed = _call(service, "reverse", "--text", "x" * 101)
    assert completed.returncode == 2
    assert "text[0] has 101 characters; the limit is 100" in " ".join(completed.stderr.split())


def test_toy_task_takes_load(service: ServiceProcess) -> None:
    code = f"""
from headwaiter.client import Client, operations
from loadtest.traffic.request_generators import LoadRequest, build_workload, request_builder

@request_builder("reversal")
def reverse(generator, transport, streamed):
    return LoadRequest(operations.call(generator.name, "Reverse", {{"text": generator.text[:100]}}))

workload = build_workload("{service.grpc}", {{}})
with Client("{service.grpc}") as client:
    for _ in range(5):
        print(len(client.execute(workload.request().call).results))
"""
    completed = _run(sys.executable, "-c", code)
    assert completed.stdout.split() == ["1"] * 5, completed.stderr


def test_missing_distribution_is_named(service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(_PYTHONPATH))
    completed = _run(_HEADWAITER, "serve", str(service.file), "--render")
    assert completed.returncode != 0
    assert "'reversal' is not a known task" in " ".join((completed.stdout + completed.stderr).split())
