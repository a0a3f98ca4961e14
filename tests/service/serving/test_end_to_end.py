"""End-to-end tests over real sockets: every task in a single process; updates and failures of replicas on Ray."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client.parser import text_string_to_metric_families

from headwaiter import open_model
from headwaiter.client import Client, DeadlineExceeded, History, InvalidInput, NotFound, Overloaded, Step, WrongTask
from loadtest.service_process import SINGLE_PROCESS, ServiceProcess, running_service, serve_command, write_config
from tests.conftest import Packages
from tests.images_kit import random_png
from tests.service.serving import sick_runtime
from tests.serving_kit import TASKS, one_model_per_task

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def models(packages: Packages) -> dict[str, Path]:
    return {name: Path(model["path"]) for name, model in one_model_per_task(packages).items()}


@pytest.fixture(scope="module")
def service(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    models = one_model_per_task(packages)
    models["writer"]["limits"] = {"max_queue_wait_ms": 20, "message_mb": 1}
    with running_service(tmp_path_factory.mktemp("service"), models, options=SINGLE_PROCESS) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: ServiceProcess) -> Iterator[Client]:
    with service.client() as client:
        yield client


def becomes_true(condition: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_client_results_match_in_process_model(client: Client, models: dict[str, Path]) -> None:
    image = random_png(50, 40)
    parameters = {"num_beams": 2, "max_new_tokens": 10}
    with open_model(models["translator"], threads=1) as model:
        (expected,) = model.translate("ab cd. ef", **parameters)
    assert client.translate("translator", "ab cd. ef", **parameters).text == expected.text
    with open_model(models["writer"], threads=1) as model:
        (expected,) = model.generate("ab", **parameters)
    assert client.generate("writer", "ab", **parameters).text == expected.text
    with open_model(models["captioner"], threads=1) as model:
        (expected,) = model.caption(image, **parameters)
    assert client.caption("captioner", image, **parameters).text == expected.text
    with open_model(models["texts"], threads=1) as model:
        (labels,) = model.classify(text="ab cd")
    assert [label.score for label in client.classify("texts", text="ab cd").labels] == [label.score for label in labels]
    with open_model(models["pictures"], threads=1) as model:
        (labels,) = model.classify(image=image)
    assert [label.name for label in client.classify("pictures", image=image).labels] == [label.name for label in labels]
    with open_model(models["finder"], threads=1) as model:
        (detection,) = model.detect(image, threshold=0.0)
    boxes = client.detect("finder", image, threshold=0.0).boxes
    assert [box.x_max for box in boxes] == [box.x_max for box in detection.boxes]


def test_status_of_address_lists_models_with_precision(service: ServiceProcess, models: dict[str, Path]) -> None:
    program = [str(Path(sys.executable).with_name("headwaiter")), "status", service.grpc, "--json"]
    result = subprocess.run(program, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert result.returncode == 0, result.stderr
    statuses = json.loads(result.stdout)["models"]
    assert {status["name"]: status["precision"] for status in statuses} == dict.fromkeys(models, "fp32")
    assert {status["phase"] for status in statuses} == {"ready"}


def test_episode_and_history_return_same_action(client: Client) -> None:
    size = client.describe("player").state_size
    states = np.random.default_rng(1).normal(size=(4, size)).astype(np.float32).tolist()
    with client.episode("player", target_return=3.0) as episode:
        actions = [episode.step(state, None if index == 0 else 0.25) for index, state in enumerate(states)]
    steps = [Step(state, action, 0.25) for state, action in zip(states[:-1], actions, strict=False)]
    acted = client.act("player", History([*steps, Step(states[-1])], 3.0))
    np.testing.assert_allclose(acted.continuous, actions[-1].continuous, atol=1e-4)


@pytest.mark.parametrize(
    ("start_stream", "call"),
    [
        (lambda c: c.translate_stream("translator", "ab cd. ef"), lambda c: c.translate("translator", "ab cd. ef")),
        (lambda c: c.generate_stream("writer", "ab"), lambda c: c.generate("writer", "ab")),
        (lambda c: c.caption_stream("captioner", random_png(9, 9)), lambda c: c.caption("captioner", random_png(9, 9))),
    ],
)
def test_stream_concatenates_to_unary_result(client: Client, start_stream: Any, call: Any) -> None:
    stream = start_stream(client)
    chunks = list(stream)
    assert "".join(chunks) == stream.result.text == call(client).text


def test_catalog_lists_models_and_unknown_model_is_not_found(client: Client, service: ServiceProcess) -> None:
    assert {model.name: model.ready for model in client.models()} == dict.fromkeys(TASKS, True)
    with pytest.raises(NotFound):
        client.translate("unknown", "ab")
    status, body = get(f"{service.http}/models/unknown")
    assert (status, body["error"]["code"]) == (404, "NOT_FOUND")
    assert "translator" in body["error"]["message"]
    status, body = get(f"{service.http}/models")
    assert [model["name"] for model in body["models"]] == sorted(TASKS)


def test_client_errors_carry_details(client: Client) -> None:
    with pytest.raises(WrongTask, match=r"texts .*classification.* Translate.* Classify, Describe"):
        client.translate("texts", "ab")
    with pytest.raises(InvalidInput, match="30,000") as caught:
        client.translate("translator", "a" * 30_000)
    assert (caught.value.field, caught.value.limit) == ("text[0]", 20_000)
    assert caught.value.request_id
    with pytest.raises(InvalidInput, match=r"1\.4 .*limit is 1 "):
        client.generate("writer", ["a" * 15_000] * 100)
    with pytest.raises(InvalidInput, match="image"):
        client.detect("finder", b"soup")


_CALLERS = 150  # a request waits for one job of each other request


def test_deadline_cancellation_and_full_queue(client: Client, service: ServiceProcess) -> None:
    long = {"max_new_tokens": 60, "num_beams": 4}
    with pytest.raises(DeadlineExceeded):
        client.generate("writer", ["ab"] * 200, timeout=0.3, **long)
    assert becomes_true(lambda: metric(service, "headwaiter_slots_in_use", model="writer") == 0)
    with ThreadPoolExecutor(_CALLERS) as pool, service.client(timeout=TIMEOUT_SECONDS) as other:
        running = [pool.submit(other.generate, "writer", ["ab"] * 10, **long) for _ in range(_CALLERS)]
        assert becomes_true(lambda: bool(metric(service, "headwaiter_queue_depth", model="writer")))

        assert becomes_true(lambda: "estimated wait" in rejection_message(client))
        for future in running:
            with suppress(Overloaded):  # some may be rejected because of the others
                assert len(future.result(timeout=TIMEOUT_SECONDS)) == 10
    with client.generate_stream("writer", "ab", max_new_tokens=60, num_beams=1) as stream:
        assert next(iter(stream))
    assert becomes_true(lambda: metric(service, "headwaiter_slots_in_use", model="writer") == 0)


def rejection_message(client: Client) -> str:
    try:
        client.generate("writer", "ab", max_new_tokens=2, timeout=0.2)
    except (Overloaded, DeadlineExceeded) as error:
        return error.message
    return ""


def test_health_and_reflection(service: ServiceProcess) -> None:
    with grpc.insecure_channel(service.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        response = stub.Check(
            health_pb2.HealthCheckRequest(), metadata=[("application", "texts")], timeout=TIMEOUT_SECONDS
        )
        assert response.status == health_pb2.HealthCheckResponse.SERVING
        named = grpc.intercept_channel(channel, _Application("texts"))
        database = ProtoReflectionDescriptorDatabase(named)
        assert "headwaiter.v1.Classification" in database.get_services()
        methods = DescriptorPool(database).FindServiceByName("headwaiter.v1.Classification").methods_by_name
        assert methods["Classify"].input_type.name == "ClassifyRequest"
    for path in ("healthz", "readyz"):
        assert get(f"{service.http}/models/texts/{path}")[0] == 200


def test_http_api(service: ServiceProcess, client: Client) -> None:
    status, body = post(f"{service.http}/models/translator/translate", {"text": "ab cd", "decoding": {"num_beams": 2}})
    assert status == 200
    assert body["results"][0]["hypotheses"][0]["text"] == client.translate("translator", "ab cd", num_beams=2).text
    assert body["model"] == {"name": "translator", "version": "1"}
    image = base64.b64encode(random_png(20, 20)).decode()
    status, body = post(f"{service.http}/models/pictures/classify", {"image": image, "top_k": 2})
    assert (status, len(body["results"][0]["labels"])) == (200, 2)
    status, body = post(f"{service.http}/models/pictures/translate", {"text": "ab"})
    assert (status, body["error"]["code"]) == (405, "UNIMPLEMENTED")
    status, body = post(f"{service.http}/models/translator/translate", {"text": "ab", "decoding": {"beam": 2}})
    assert (status, body["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert "num_beams" in body["error"]["message"]
    assert get(f"{service.http}/models/translator")[1]["task"] == "translation"
    request = urllib.request.Request(
        f"{service.http}/models/writer/generate",
        json.dumps({"prompt": "ab"}).encode(),
        {"content-type": "application/json", "accept": "text/event-stream"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as stream:
        text = stream.read().decode()
    assert text.count("event: done") == 1
    with urllib.request.urlopen(f"{service.http}/models/translator/docs", timeout=TIMEOUT_SECONDS) as page:
        assert '<a href="openapi.json">' in page.read().decode()
    assert "/translate" in get(f"{service.http}/models/translator/openapi.json")[1]["paths"]


def test_metrics_count_every_request(service: ServiceProcess, client: Client) -> None:
    def request_count(code: str) -> float:
        return metric(service, "headwaiter_requests_total", model="texts", method="Classify", code=code) or 0.0

    succeeded, rejected = request_count("OK"), request_count("INVALID_ARGUMENT")
    for _ in range(20):
        client.classify("texts", text="ab")
    with pytest.raises(InvalidInput):
        client.classify("texts", text="ab", top_k=0)
    assert becomes_true(lambda: request_count("OK") == succeeded + 20)
    assert request_count("INVALID_ARGUMENT") == rejected + 1
    info = metric(service, "headwaiter_model_info", model="finder", task="detection", precision="fp32")
    assert info == 1


def test_killed_replica_update_and_drain_lose_no_request(models: dict[str, Path], tmp_path: Path) -> None:
    """Two replicas under load: one is killed, then the model is updated, then the service stops."""
    model = {"path": str(models["texts"]), "resources": {"cpus": 0.1}, "replicas": 2}
    with running_service(tmp_path, {"texts": model}) as service, service.client(timeout=TIMEOUT_SECONDS) as client:
        load = Load(lambda: client.classify("texts", text="ab cd"))
        victims = service.replicas("texts")
        assert len(victims) == 2
        os.kill(victims[0], signal.SIGKILL)
        assert becomes_true(lambda: len(set(service.replicas("texts")) - set(victims)) == 1)
        old = service.replicas("texts")
        service.change({"texts": {**model, "limits": {"text": 5000}}})
        assert becomes_true(lambda: not set(service.replicas("texts")) & set(old))
        assert client.describe("texts").limits["text"] == 5000
        requests = load.stop()
        assert load.errors == []
        last = threading.Thread(target=load.once)
        last.start()
        assert service.stop() == 0
        last.join(TIMEOUT_SECONDS)
        assert load.errors == []
        assert requests > 50
        assert not service.replicas("texts")


def test_replica_with_stopped_engine_is_replaced(models: dict[str, Path], tmp_path: Path) -> None:
    model = {"path": str(models["texts"]), "resources": {"cpus": 0.1}}
    program = (sys.executable, "-m", "tests.service.serving.launch_kit", "failing_engine_app")
    with running_service(tmp_path, {"texts": model}, program=program) as service, service.client() as client:
        assert client.classify("texts", text="ab").labels
        (unhealthy,) = service.replicas("texts")
        with grpc.insecure_channel(service.grpc) as channel:
            send = channel.unary_unary("/headwaiter.v1.Models/Describe")
            send(b"", metadata=[("application", "texts")], timeout=TIMEOUT_SECONDS)
        assert becomes_true(lambda: unhealthy not in service.replicas("texts"))
        assert client.classify("texts", text="ab", timeout=TIMEOUT_SECONDS).labels


@pytest.mark.parametrize(("fault", "cause"), [("fail", "failing"), ("hang", "hung")])
def test_sick_replica_is_replaced_and_few_calls_fail(
    fault: str, cause: str, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas under load from two clients; the runtime of one replica fails, or hangs, at every step."""
    file = tmp_path / "fault"
    monkeypatch.setenv(sick_runtime.VARIABLE, str(file))
    model = {"path": str(models["texts"]), "resources": {"cpus": 0.1}, "replicas": 2, "run_timeout_s": 2}
    program = (sys.executable, "-m", "tests.service.serving.launch_kit", "sick_runtime_app")
    with (
        running_service(tmp_path, {"texts": model}, program=program) as service,
        service.client(timeout=TIMEOUT_SECONDS) as client,
    ):
        load = Load(lambda: client.classify("texts", text="ab cd"))
        sick, _ = service.replicas("texts")
        started = time.monotonic()
        file.write_text(f"{fault} {sick}")
        assert becomes_true(lambda: sick not in service.replicas("texts"))
        replaced_seconds = time.monotonic() - started
        assert becomes_true(lambda: len(service.replicas("texts")) == 2)
        requests = load.stop()
        assert replaced_seconds < 30
        # Three steps fail; calls that wait for a hung step, or come later, are retried by the client.
        assert len(load.errors) <= 6, load.errors
        assert requests > 10
        assert metric(service, "headwaiter_engine_unhealthy_total", cause=cause) == 1


def test_model_that_cannot_start_reports_its_cause_everywhere(models: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken/1/fp32"
    shutil.copytree(models["texts"], broken)
    next(broken.glob("*.onnx")).write_bytes(b"not a graph")
    texts = {"path": str(models["texts"]), "resources": {"cpus": 0.1}}
    with running_service(tmp_path, {"texts": texts}) as service:
        write_config(service.file, service.ports, {"texts": texts, "broken": texts | {"path": str(broken)}})
        serve = serve_command(service.file, ())
        update = subprocess.run(serve, capture_output=True, text=True, timeout=120)
        status = subprocess.run([serve[0], "status", *serve[2:]], capture_output=True, text=True, timeout=60)
        logs = Path(next(line.split()[1] for line in service.lines if line.startswith("logs")))
        log = "".join(file.read_text() for file in logs.glob("*broken*"))
        failures = metric(service, "headwaiter_model_start_failures_total", model="broken")
    cause = "model.onnx does not match its SHA-256 checksum"
    assert update.returncode == 1
    assert update.stderr.count("! broken: ") <= 1, "a repeated cause is printed once"
    assert "✗ broken did not start: " in update.stderr
    assert cause in update.stderr
    assert status.returncode == 1
    assert cause in status.stdout
    assert "broken did not start: " in log
    assert "has no attribute" not in log
    assert failures is not None
    assert failures >= 1


class Load:
    """Two threads that send requests back to back until `stop` is called."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.errors: list[Exception] = []
        self._call, self._count, self._stop = call, 0, threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def once(self) -> None:
        try:
            self._call()
            self._count += 1
        except Exception as error:
            self.errors.append(error)

    def stop(self) -> int:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
        return self._count

    def _run(self) -> None:
        while not self._stop.is_set():
            self.once()
            self._stop.wait(0.02)


class _Application(grpc.StreamStreamClientInterceptor):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self._metadata = [("application", name)]

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), requests)


def get(url: str) -> tuple[int, Any]:
    return _send(urllib.request.Request(url))


def post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    return _send(urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"}))


def _send(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def metric(service: ServiceProcess, sample: str, **labels: str) -> float | None:
    """Sum of a sample over the series that have these labels; None if there are none."""
    with urllib.request.urlopen(service.metrics, timeout=TIMEOUT_SECONDS) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    values = [
        series.value
        for family in families
        for series in family.samples
        if series.name == sample and labels.items() <= series.labels.items()
    ]
    return sum(values) if values else None
