"""The whole service: a real Ray cluster, HAProxy, replicas of every task, over real sockets."""

from __future__ import annotations

import base64
import json
import os
import signal
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

from loadtest.served import Service, serving
from service import open_model
from service.client import Client, DeadlineExceeded, History, InvalidInput, NotFound, Overloaded, Step, WrongTask
from tests.conftest import Packages
from tests.images_kit import noise
from tests.serving_kit import TASKS, one_of_each

pytestmark = pytest.mark.slow

HOLD_UP_SECONDS = 60


@pytest.fixture(scope="module")
def models(packages: Packages) -> dict[str, Path]:
    return {name: Path(told["path"]) for name, told in one_of_each(packages).items()}


@pytest.fixture(scope="module")
def service(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    told = one_of_each(packages)
    told["writer"]["limits"] = {"wait_ms": 200, "message_mb": 1}
    with serving(tmp_path_factory.mktemp("service"), told) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with service.client() as client:
        yield client


def eventually(holds: Callable[[], bool], seconds: float = HOLD_UP_SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_every_task_answers_as_in_process(client: Client, models: dict[str, Path]) -> None:
    picture = noise(50, 40)
    words = {"beams": 2, "max_new_tokens": 10}
    with open_model(models["translator"], threads=1) as model:
        (expected,) = model.translate("ab cd. ef", **words)
    assert client.translate("translator", "ab cd. ef", **words).text == expected.text
    with open_model(models["writer"], threads=1) as model:
        (expected,) = model.generate("ab", **words)
    assert client.generate("writer", "ab", **words).text == expected.text
    with open_model(models["captioner"], threads=1) as model:
        (expected,) = model.caption(picture, **words)
    assert client.caption("captioner", picture, **words).text == expected.text
    with open_model(models["texts"], threads=1) as model:
        (labels,) = model.classify(text="ab cd")
    assert [label.score for label in client.classify("texts", text="ab cd").labels] == [one.score for one in labels]
    with open_model(models["pictures"], threads=1) as model:
        (labels,) = model.classify(image=picture)
    assert [one.name for one in client.classify("pictures", image=picture).labels] == [one.name for one in labels]
    with open_model(models["finder"], threads=1) as model:
        (found,) = model.detect(picture, threshold=0.0)
    boxes = client.detect("finder", picture, threshold=0.0).boxes
    assert [box.x_max for box in boxes] == [box.x_max for box in found.boxes]


def test_an_episode_and_a_history_act_alike(client: Client) -> None:
    size = client.describe("player").state_size
    states = np.random.default_rng(1).normal(size=(4, size)).astype(np.float32).tolist()
    with client.episode("player", target_return=3.0) as episode:
        actions = [episode.step(state, None if index == 0 else 0.25) for index, state in enumerate(states)]
    steps = [Step(state, action, 0.25) for state, action in zip(states[:-1], actions, strict=False)]
    acted = client.act("player", History([*steps, Step(states[-1])], 3.0))
    np.testing.assert_allclose(acted.continuous, actions[-1].continuous, atol=1e-4)


@pytest.mark.parametrize(
    ("begin", "whole"),
    [
        (lambda c: c.translate_stream("translator", "ab cd. ef"), lambda c: c.translate("translator", "ab cd. ef")),
        (lambda c: c.generate_stream("writer", "ab"), lambda c: c.generate("writer", "ab")),
        (lambda c: c.caption_stream("captioner", noise(9, 9)), lambda c: c.caption("captioner", noise(9, 9))),
    ],
)
def test_streams(client: Client, begin: Any, whole: Any) -> None:
    stream = begin(client)
    pieces = list(stream)
    assert "".join(pieces) == stream.result.text == whole(client).text


def test_models_are_listed_and_unknown_ones_are_not_found(client: Client, service: Service) -> None:
    assert {each.name: each.ready for each in client.models()} == dict.fromkeys(TASKS, True)
    with pytest.raises(NotFound):
        client.translate("nobody", "ab")
    status, body = get(f"{service.http}/models/nobody")
    assert (status, body["error"]["code"]) == (404, "NOT_FOUND")
    assert "translator" in body["error"]["message"]
    status, body = get(f"{service.http}/models")
    assert [each["name"] for each in body["models"]] == sorted(TASKS)


def test_errors_over_the_whole_way(client: Client) -> None:
    with pytest.raises(WrongTask, match="texts does classification: it has Classify, Describe, not Translate"):
        client.translate("texts", "ab")
    with pytest.raises(InvalidInput, match="text\\[0\\] has 30,000 characters") as caught:
        client.translate("translator", "a" * 30_000)
    assert (caught.value.field, caught.value.limit) == ("text[0]", 20_000)
    assert caught.value.request_id
    with pytest.raises(InvalidInput, match=r"the request has 1\.4 MB; the limit is 1 MB"):
        client.generate("writer", ["a" * 15_000] * 100)
    with pytest.raises(InvalidInput, match="not an image"):
        client.detect("finder", b"soup")


def test_a_deadline_a_cancel_and_a_full_queue(client: Client, service: Service) -> None:
    long = {"max_new_tokens": 60, "beams": 4}
    with pytest.raises(DeadlineExceeded):
        client.generate("writer", ["ab"] * 200, timeout=0.3, **long)
    assert eventually(lambda: metric(service, "headwaiter_rows_in_use", model="writer") == 0)
    with ThreadPoolExecutor(4) as pool, service.client(timeout=HOLD_UP_SECONDS) as other:
        running = [pool.submit(other.generate, "writer", ["ab"] * 200, **long) for _ in range(2)]
        assert eventually(lambda: bool(metric(service, "headwaiter_queue_waiting", model="writer")))

        assert eventually(lambda: "writer is busy: the wait would be" in refusal(client))
        for each in running:
            with suppress(Overloaded):  # the second may have met the line of the first
                assert len(each.result()) == 200
    with client.generate_stream("writer", "ab", max_new_tokens=60, beams=1) as stream:
        assert next(iter(stream))
    assert eventually(lambda: metric(service, "headwaiter_rows_in_use", model="writer") == 0)


def refusal(client: Client) -> str:
    try:
        client.generate("writer", "ab", max_new_tokens=2, timeout=0.2)
    except (Overloaded, DeadlineExceeded) as error:
        return error.message
    return ""


def test_health_and_reflection(service: Service) -> None:
    with grpc.insecure_channel(service.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), metadata=[("application", "texts")])
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        named = grpc.intercept_channel(channel, _Application("texts"))
        found = ProtoReflectionDescriptorDatabase(named)
        assert "headwaiter.v1.Classification" in found.get_services()
        methods = DescriptorPool(found).FindServiceByName("headwaiter.v1.Classification").methods_by_name
        assert methods["Classify"].input_type.name == "ClassifyRequest"
    for path in ("healthz", "readyz"):
        assert get(f"{service.http}/models/texts/{path}")[0] == 200


def test_http(service: Service, client: Client) -> None:
    status, body = post(f"{service.http}/models/translator/translate", {"text": "ab cd", "decoding": {"beams": 2}})
    assert status == 200
    assert body["results"][0]["hypotheses"][0]["text"] == client.translate("translator", "ab cd", beams=2).text
    assert body["model"] == {"name": "translator", "version": "1"}
    picture = base64.b64encode(noise(20, 20)).decode()
    status, body = post(f"{service.http}/models/pictures/classify", {"image": picture, "top_k": 2})
    assert (status, len(body["results"][0]["labels"])) == (200, 2)
    status, body = post(f"{service.http}/models/pictures/translate", {"text": "ab"})
    assert (status, body["error"]["code"]) == (405, "UNIMPLEMENTED")
    status, body = post(f"{service.http}/models/translator/translate", {"text": "ab", "decoding": {"beam": 2}})
    assert (status, body["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert "beams" in body["error"]["message"]
    assert get(f"{service.http}/models/translator")[1]["task"] == "translation"
    request = urllib.request.Request(
        f"{service.http}/models/writer/generate",
        json.dumps({"prompt": "ab"}).encode(),
        {"content-type": "application/json", "accept": "text/event-stream"},
    )
    with urllib.request.urlopen(request) as stream:
        text = stream.read().decode()
    assert text.count("event: done") == 1
    with urllib.request.urlopen(f"{service.http}/models/translator/docs") as page:
        assert '<a href="openapi.json">' in page.read().decode()
    assert "/translate" in get(f"{service.http}/models/translator/openapi.json")[1]["paths"]


def test_metrics_count_every_call(service: Service, client: Client) -> None:
    def counted(code: str) -> float:
        return metric(service, "headwaiter_requests_total", model="texts", method="Classify", code=code) or 0.0

    before, refused = counted("OK"), counted("INVALID_ARGUMENT")
    for _ in range(20):
        client.classify("texts", text="ab")
    with pytest.raises(InvalidInput):
        client.classify("texts", text="ab", top_k=0)
    assert eventually(lambda: counted("OK") == before + 20)
    assert counted("INVALID_ARGUMENT") == refused + 1
    info = metric(service, "headwaiter_model_info", model="finder", task="detection", precision="fp32")
    assert info == 1


def test_a_killed_replica_and_an_update_go_unnoticed(models: dict[str, Path], tmp_path: Path) -> None:
    """Two replicas under load: one is killed, then the model is updated in place, then all drain. No call fails."""
    told = {"path": str(models["texts"]), "resources": {"cpus": 0.1}, "replicas": 2}
    with serving(tmp_path, {"texts": told}) as service, service.client(timeout=HOLD_UP_SECONDS) as client:
        load = Load(lambda: client.classify("texts", text="ab cd"))
        victims = service.replicas("texts")
        assert len(victims) == 2
        os.kill(victims[0], signal.SIGKILL)
        assert eventually(lambda: len(set(service.replicas("texts")) - set(victims)) == 1)
        old = service.replicas("texts")
        service.change({"texts": {**told, "limits": {"text": 5000}}})
        assert eventually(lambda: not set(service.replicas("texts")) & set(old))
        assert client.describe("texts").limits["text"] == 5000
        calls = load.stop()
        assert load.errors == []
        slow = threading.Thread(target=load.once)
        slow.start()
        assert service.stop() == 0
        slow.join()
        assert load.errors == []
        assert calls > 50
        assert not service.replicas("texts")


def test_a_replica_whose_engine_ended_is_replaced(models: dict[str, Path], tmp_path: Path) -> None:
    told = {"path": str(models["texts"]), "resources": {"cpus": 0.1}}
    program = (sys.executable, "-m", "tests.service.launch_kit", "sick_app")
    with serving(tmp_path, {"texts": told}, program=program) as service, service.client() as client:
        assert client.classify("texts", text="ab").labels
        (sick,) = service.replicas("texts")
        with grpc.insecure_channel(service.grpc) as channel:
            send = channel.unary_unary("/headwaiter.v1.Models/ListModels")
            send(b"", metadata=[("application", "texts")])
        assert eventually(lambda: sick not in service.replicas("texts"))
        assert client.classify("texts", text="ab", timeout=HOLD_UP_SECONDS).labels


class Load:
    """Calls one after another in two threads until told to stop."""

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
            thread.join()
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
    return _answer(urllib.request.Request(url))


def post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    return _answer(urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"}))


def _answer(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def metric(service: Service, sample: str, **labels: str) -> float | None:
    """Summed over the series that have these labels."""
    with urllib.request.urlopen(service.metrics) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    found = [
        each.value
        for family in families
        for each in family.samples
        if each.name == sample and labels.items() <= each.labels.items()
    ]
    return sum(found) if found else None
