"""What a client can rely on, in whichever way the models are served."""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client.parser import text_string_to_metric_families

from headwaiter.api.methods import METHODS
from headwaiter.client import (
    Client,
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    NotFound,
    Unauthenticated,
    WrongTask,
)
from headwaiter.serving.metrics.definitions import PREFIX
from headwaiter.v1 import models_pb2, models_pb2_grpc
from loadtest.service_process import STOP_SECONDS, ServiceProcess, running_service
from tests.contract.conftest import MODELS, TIMEOUT_SECONDS
from tests.http_kit import error_of, events_of, request
from tests.images_kit import random_png

LONG = {"num_beams": 4, "max_new_tokens": 60}
METRICS = {
    *("requests", "requests_rejected", "request_duration_seconds", "request_stage_duration_seconds"),
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "input_tokens", "output_tokens", "images"),
    *("replicas_ready", "replicas_desired", "model_info", "engine_jobs_accepted", "engine_jobs_finished"),
    *("engine_steps", "batch_elements", "queue_depth", "slots_in_use", "slots", "estimated_wait_seconds"),
}


class Http:
    """Sends requests with the API key, or with another one."""

    def __init__(self, service: ServiceProcess, key: str | None) -> None:
        self._url, self._headers = service.http, {"authorization": f"Bearer {key}"} if key else {}

    def get(self, path: str) -> requests.Response:
        return request("GET", self._url + path, headers=self._headers)

    def post(self, path: str, body: dict[str, Any], **headers: str) -> requests.Response:
        return request("POST", self._url + path, json=body, headers={**self._headers, **headers})


@pytest.fixture(scope="module")
def http(service: ServiceProcess, key: str) -> Http:
    return Http(service, key)


def metric(service: ServiceProcess, sample: str, **labels: str) -> float:
    """Sum of a sample over the series that have these labels."""
    families = text_string_to_metric_families(request("GET", service.metrics).text)
    return sum(
        series.value
        for family in families
        for series in family.samples
        if series.name == PREFIX + sample and labels.items() <= series.labels.items()
    )


def slots_in_use(service: ServiceProcess) -> float:
    assert metric(service, "slots", model="writer") == 8
    return metric(service, "slots_in_use", model="writer")


def becomes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def health_of(service: ServiceProcess, application: str) -> str:
    """Status of a model, or the status code of the failed check."""
    with grpc.insecure_channel(service.grpc) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), metadata=[("application", application)], timeout=TIMEOUT_SECONDS
            )
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def test_translate_grpc_and_http_return_same_text(client: Client, http: Http) -> None:
    text = client.translate("translator", "ab cd. ef", num_beams=2, max_new_tokens=10).text
    body = {"text": "ab cd. ef", "decoding": {"num_beams": 2, "max_new_tokens": 10}}
    response = http.post("/models/translator/translate", body)
    assert response.status_code == 200
    assert response.json()["results"][0]["hypotheses"][0]["text"] == text != ""
    assert response.json()["model"] == {"name": "translator", "version": "1"}


def test_translate_streams_concatenate_to_unary_text(client: Client, http: Http) -> None:
    stream = client.translate_stream("translator", "ab cd. ef", max_new_tokens=10)
    chunks = list(stream)
    assert "".join(chunks) == stream.result.text
    body = {"text": "ab cd. ef", "decoding": {"max_new_tokens": 10}}
    events = events_of(http.post("/models/translator/translate", body, accept="text/event-stream"))
    assert [name for name, _ in events][-1] == "done"
    assert "".join(data["delta"] for name, data in events if name == "delta") == stream.result.text


def test_classify_image_grpc_and_http_return_same_labels(client: Client, http: Http) -> None:
    image = random_png(20, 20)
    labels = client.classify("pictures", image=image, top_k=2).labels
    response = http.post("/models/pictures/classify", {"image": base64.b64encode(image).decode(), "top_k": 2})
    assert [label["name"] for label in response.json()["results"][0]["labels"]] == [label.name for label in labels]
    assert len(labels) == 2


def test_models_are_listed_and_described(client: Client, http: Http) -> None:
    assert {model.name: model.ready for model in client.models()} == dict.fromkeys(MODELS, True)
    assert [model["name"] for model in http.get("/models").json()["models"]] == sorted(MODELS)
    assert client.describe("writer").task == http.get("/models/writer").json()["task"] == "generation"
    assert http.get("/").json()["name"] == "headwaiter"
    assert "/translate" in http.get("/models/translator/openapi.json").json()["paths"]
    assert http.get("/models/translator/docs").headers["content-type"].startswith("text/html")


def test_unknown_model_is_not_found_and_error_names_models(client: Client, http: Http) -> None:
    with pytest.raises(NotFound, match=r"available models: pictures, translator, writer") as caught:
        client.translate("unknown", "ab")
    assert caught.value.request_id
    for path in ("/models/unknown", "/models/unknown/translate"):
        response = http.get(path)
        assert (response.status_code, error_of(response)["code"]) == (404, "NOT_FOUND")
        assert "pictures, translator, writer" in error_of(response)["message"]


def test_wrong_task_error_names_supported_methods(client: Client, http: Http) -> None:
    with pytest.raises(WrongTask, match=r"pictures .*classification.* Translate.* Classify, Describe"):
        client.translate("pictures", "ab")
    response = http.post("/models/pictures/translate", {"text": "ab"})
    assert (response.status_code, error_of(response)["code"]) == (405, "UNIMPLEMENTED")


@pytest.mark.parametrize("wrong_key", [None, "hw_wrong"])
def test_missing_or_invalid_key_is_unauthenticated(service: ServiceProcess, wrong_key: str | None) -> None:
    with service.client(key=wrong_key) as client:
        for call in (lambda: client.translate("translator", "ab"), client.models):
            with pytest.raises(Unauthenticated, match="authorization: Bearer KEY"):
                call()
    for path in ("/models", "/models/translator", "/models/unknown"):
        response = Http(service, wrong_key).get(path)
        assert (response.status_code, error_of(response)["code"]) == (401, "UNAUTHENTICATED")


def test_too_large_message_is_invalid_with_limit(client: Client, http: Http) -> None:
    prompts = ["a" * 15_000] * 100
    with pytest.raises(InvalidInput, match=r"1\.4 .*limit is 1 ") as caught:
        client.generate("writer", prompts)
    assert caught.value.limit == 1
    response = http.post("/models/writer/generate", {"prompt": prompts})
    assert (response.status_code, error_of(response)["limit"]) == (400, 1)


@pytest.mark.parametrize("name", ["Translate", "TranslateStream"])
def test_malformed_message_is_invalid(service: ServiceProcess, key: str, name: str) -> None:
    method, metadata = METHODS[name], [("application", "translator"), ("authorization", f"Bearer {key}")]
    with grpc.insecure_channel(service.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        list(channel.stream_stream(method.path)(iter([b"\xff"]), metadata=metadata, timeout=TIMEOUT_SECONDS))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == f"the message is not a valid {method.request.DESCRIPTOR.name}"


def test_bad_input_error_has_field_and_limit(client: Client, http: Http) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.translate("translator", "a" * 30_000)
    assert (caught.value.field, caught.value.limit) == ("text[0]", 20_000)
    error = error_of(http.post("/models/translator/translate", {"text": "a" * 30_000}))
    assert (error["code"], error["limit"]) == ("INVALID_ARGUMENT", 20_000)
    error = error_of(http.post("/models/translator/translate", {"text": "a", "decoding": {"beam": 2}}))
    assert "num_beams" in error["message"]


def test_deadline_fails_the_request_and_frees_its_slots(service: ServiceProcess, client: Client, http: Http) -> None:
    with pytest.raises(DeadlineExceeded):
        client.generate("writer", ["ab"] * 200, timeout=0.3, **LONG)
    response = http.post(
        "/models/writer/generate", {"prompt": ["ab"] * 200, "decoding": LONG}, **{"x-timeout-ms": "300"}
    )
    assert (response.status_code, error_of(response)["code"]) == (504, "DEADLINE_EXCEEDED")
    assert becomes_true(lambda: slots_in_use(service) == 0)


def test_cancelled_stream_is_recorded_and_frees_its_slots(service: ServiceProcess, client: Client) -> None:
    labels = {"model": "writer", "method": "GenerateStream", "code": "CANCELLED"}
    before = metric(service, "requests_total", **labels)

    def cancel_is_recorded() -> bool:
        with client.generate_stream("writer", "ab", max_new_tokens=60, num_beams=1) as stream:
            assert next(iter(stream))
        assert becomes_true(lambda: slots_in_use(service) == 0)
        return metric(service, "requests_total", **labels) > before

    assert becomes_true(cancel_is_recorded)  # a fast machine may finish the text before it is cancelled


def test_ready_models_are_serving_without_key(service: ServiceProcess) -> None:
    assert {name: health_of(service, name) for name in MODELS} == dict.fromkeys(MODELS, "SERVING")
    assert health_of(service, "unknown") == "NOT_FOUND"
    for path in ("/healthz", "/readyz", "/models/writer/healthz", "/models/writer/readyz"):
        assert Http(service, None).get(path).status_code == 200


def test_reflection_lists_services(service: ServiceProcess) -> None:
    with grpc.insecure_channel(service.grpc) as channel:
        named = grpc.intercept_channel(channel, _Application("writer"))
        assert "headwaiter.v1.Generation" in ProtoReflectionDescriptorDatabase(named).get_services()


def test_grpc_without_application_is_answered_by_the_catalog(service: ServiceProcess, key: str) -> None:
    metadata, options = [("authorization", f"Bearer {key}")], {"timeout": TIMEOUT_SECONDS}
    with grpc.insecure_channel(service.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), **options)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        assert "headwaiter.v1.Models" in ProtoReflectionDescriptorDatabase(channel).get_services()
        models = models_pb2_grpc.ModelsStub(channel)
        listed = models.ListModels(models_pb2.ListModelsRequest(), metadata=metadata, **options)
        assert [model.name for model in listed.models] == sorted(MODELS)
        with pytest.raises(grpc.RpcError) as caught:
            models.Describe(models_pb2.DescribeRequest(), metadata=metadata, **options)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    available = ", ".join(sorted(MODELS))
    message = f"the metadata key `application` must name a model; available models: {available}"
    assert caught.value.details() == message


class _Application(grpc.StreamStreamClientInterceptor):
    def __init__(self, name: str) -> None:
        self._metadata = [("application", name)]

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), requests)


def test_metrics_have_names_and_count_every_request(service: ServiceProcess, client: Client) -> None:
    labels = {"model": "pictures", "method": "Classify", "code": "OK"}
    before = metric(service, "requests_total", **labels)
    for _ in range(5):
        client.classify("pictures", image=random_png(9, 9))
    list(client.generate_stream("writer", "ab", max_new_tokens=20))
    assert becomes_true(lambda: metric(service, "requests_total", **labels) == before + 5)
    assert becomes_true(lambda: metric(service, "replicas_desired", model="writer") == 1)
    assert becomes_true(lambda: metric(service, "engine_jobs_finished_total", model="writer") >= 1)
    assert metric(service, "replicas_ready", model="writer") == 1
    names = {family.name for family in text_string_to_metric_families(request("GET", service.metrics).text)}
    assert {PREFIX + name for name in METRICS} - names == set()


def test_stop_reports_not_serving_and_completes_open_requests(
    options: tuple[str, ...], models: dict[str, Any], tmp_path: Path
) -> None:
    with (
        running_service(tmp_path, {"writer": models["writer"]}, options=options) as service,
        service.client(timeout=TIMEOUT_SECONDS) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        open_request = pool.submit(client.generate, "writer", ["ab"] * 256, **LONG)
        assert becomes_true(lambda: slots_in_use(service) > 0)
        service.process.send_signal(signal.SIGTERM)
        assert becomes_true(lambda: health_of(service, "writer") != "SERVING")
        with suppress(HeadwaiterError):  # on Ray, calls are accepted as long as they have a route
            client.generate("writer", "ab", timeout=1)
        assert len(open_request.result(TIMEOUT_SECONDS)) == 256
        assert service.process.wait(STOP_SECONDS) == 0
        assert not any("Traceback" in line for line in service.lines)
