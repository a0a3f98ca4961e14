"""Real models over HTTP behave as their OpenAPI documents describe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from headwaiter import open_model
from headwaiter.api.http.model import build_app
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from tests.conftest import Packages
from tests.counts_kit import Counts
from tests.http_kit import PREFIX, REQUEST_TIMEOUT_SECONDS, error_of, events_of, get, http_server, post
from tests.images_kit import random_png

Serve = Callable[[str], str]
TASK_PATHS = {
    "marian": {"/translate"},
    "caption-vit": {"/caption"},
    "bert": {"/classify"},
    "vit": {"/classify"},
    "detr": {"/detect"},
    "decision_transformer": {"/act"},
    "gpt2": {"/generate"},
}
COMMON_PATHS = {"/", "/healthz", "/readyz"}


@pytest.fixture(scope="module")
def serve(packages: Packages) -> Iterator[Serve]:
    with ExitStack() as stack:

        @cache
        def address(kind: str) -> str:
            folder = packages(kind, "fp32").package.folder
            args = ModelServerArgs(name=kind, folder=folder, settings={"threads": 1, "limits": {"new_tokens": 8}})
            model_server = ModelServer(args, Counts())
            stack.callback(model_server.close)
            app = asyncio.run(build_app(model_server.endpoint, ready=model_server.is_ready))
            return stack.enter_context(http_server(app))

        yield address


@pytest.mark.parametrize("kind", TASK_PATHS)
def test_openapi_examples_are_accepted_and_responses_match_schema(serve: Serve, kind: str) -> None:
    address = serve(kind)
    spec = get(f"{address}/openapi.json").json()
    assert spec["servers"] == [{"url": PREFIX}]
    assert set(spec["paths"]) == TASK_PATHS[kind] | COMMON_PATHS
    assert "securitySchemes" not in spec["components"]
    for path in TASK_PATHS[kind]:
        operation = spec["paths"][path]["post"]
        body = operation["requestBody"]["content"]["application/json"]
        jsonschema.validate(body["example"], {**body["schema"], "components": spec["components"]})
        response = post(address + path, json=body["example"])
        assert response.status_code == 200, response.text
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(response.json(), {**schema, "components": spec["components"]})
        assert response.json()["model"] == {"name": kind, "version": "1"}
    schema = spec["paths"]["/"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(get(address).json(), {**schema, "components": spec["components"]})


@pytest.mark.parametrize(
    ("kind", "path"), [("marian", "/translate"), ("caption-vit", "/caption"), ("gpt2", "/generate")]
)
def test_stream_deltas_concatenate_to_unary_result(serve: Serve, kind: str, path: str) -> None:
    address = serve(kind)
    operation = get(f"{address}/openapi.json").json()["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]["example"]
    body["decoding"] = {"num_beams": 1, "max_new_tokens": 2}
    unary = post(address + path, json=body).json()["results"][0]["hypotheses"][0]
    *deltas, (last_event, done) = events_of(post(address + path, json=body, headers={"accept": "text/event-stream"}))
    assert last_event == "done"
    assert "".join(data["delta"] for _, data in deltas) == done["text"] == unary["text"]
    assert done["usage"]["output_tokens"] > 0
    assert done["finish_reason"] == unary["finish_reason"] == "length"


def test_classify_form_upload_equals_in_process_result(serve: Serve, packages: Packages) -> None:
    address, images = serve("vit"), [random_png(50, 40), random_png(30, 30)]
    with open_model(packages("vit", "fp32").package.folder, threads=1) as model:
        expected = [[label.score for label in labels] for labels in model.classify(image=images, top_k=2)]
    files = [("image", (f"{index}.png", image)) for index, image in enumerate(images)]
    response = post(f"{address}/classify", files=files, data={"top_k": "2"})
    assert [[label["score"] for label in result["labels"]] for result in response.json()["results"]] == expected


@pytest.mark.parametrize(
    ("kind", "path", "body", "field", "limit"),
    [
        ("bert", "/classify", {"image": "AAE="}, "image[0]", None),
        ("bert", "/classify", {"text": ["ab", "ab " * 99]}, "text[1]", 61),
        ("bert", "/classify", {"text": ["ab"] * 257}, "text", 256),
        ("vit", "/classify", {"image": "AAE="}, "image[0]", None),
        ("marian", "/translate", {"text": "ab", "decoding": {"num_beams": 0}}, "decoding.num_beams", 1),
        (
            "decision_transformer",
            "/act",
            {"history": {"steps": [{"state": [1]}], "target_return": 1}},
            "history[0].steps[0].state",
            5,
        ),
    ],
)
def test_input_rejected_by_task_has_json_field_and_limit(
    serve: Serve, kind: str, path: str, body: Any, field: str, limit: int | None
) -> None:
    response = post(serve(kind) + path, json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["message"].startswith(f"{field} ")
    assert (error["field"], error.get("limit")) == (field, limit)


@pytest.mark.parametrize(("kind", "inputs"), [("bert", {"text", "text_pair"}), ("vit", {"image"})])
def test_openapi_of_classifier_has_only_supported_inputs(serve: Serve, kind: str, inputs: set[str]) -> None:
    spec = get(f"{serve(kind)}/openapi.json").json()
    fields = set(spec["components"]["schemas"]["ClassifyRequest"]["properties"])
    assert fields - {"top_k", "threshold"} == inputs
    bodies = spec["paths"]["/classify"]["post"]["requestBody"]["content"]
    assert ("multipart/form-data" in bodies) == (kind == "vit")


def test_docs_page_loads_no_external_resources(serve: Serve) -> None:
    page = get(f"{serve('bert')}/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    for reference in ("http://", "https://", "src="):
        assert reference not in page.text


def _has_empty_list_in_form(case: schemathesis.Case) -> bool:
    """A form cannot represent an empty list: the field is omitted, which makes an invalid request valid."""
    is_form = case.media_type == "multipart/form-data" and isinstance(case.body, dict)
    return is_form and [] in case.body.values()


@pytest.mark.parametrize("mode", schemathesis.GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", ["marian", "bert", "vit", "decision_transformer"])
def test_generated_request_gets_documented_response(serve: Serve, kind: str, mode: schemathesis.GenerationMode) -> None:
    """Valid requests may be rejected: a schema cannot express tokenizer limits or deadlines."""
    address = serve(kind)
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", timeout=REQUEST_TIMEOUT_SECONDS)
    (path,) = TASK_PATHS[kind]

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=schema[path]["POST"].as_strategy(mode))
    def send(case: schemathesis.Case) -> None:
        assume(not _has_empty_list_in_form(case))
        response = case.call_and_validate(
            excluded_checks=[positive_data_acceptance, not_a_server_error], timeout=REQUEST_TIMEOUT_SECONDS
        )
        assert response.status_code != 500

    send()
    assert get(f"{address}/readyz").status_code == 200
