"""Real models over HTTP, as their own documentation says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from service import open_model
from service.host import HostArgs, ModelHost
from service.ingress.http.model import build_app
from tests.conftest import Packages
from tests.counts_kit import Counts
from tests.http_kit import PREFIX, error_of, events_of, listening
from tests.images_kit import noise

Serve = Callable[[str], str]
OWN = {
    "marian": {"/translate"},
    "caption-vit": {"/caption"},
    "bert": {"/classify"},
    "vit": {"/classify"},
    "detr": {"/detect"},
    "decision_transformer": {"/act"},
    "gpt2": {"/generate"},
}
ALWAYS = {"/", "/healthz", "/readyz"}


@pytest.fixture(scope="module")
def serve(packages: Packages) -> Iterator[Serve]:
    with ExitStack() as stack:

        @cache
        def address(kind: str) -> str:
            folder = packages(kind, "fp32").package.folder
            host = ModelHost(HostArgs(name=kind, folder=folder, threads=1, limits={"new_tokens": 8}), Counts())
            stack.callback(host.close)
            app = asyncio.run(build_app(host.endpoint, ready=host.is_ready))
            return stack.enter_context(listening(app))

        yield address


@pytest.mark.parametrize("kind", OWN)
def test_examples_work_and_answers_are_as_described(serve: Serve, kind: str) -> None:
    address = serve(kind)
    spec = requests.get(f"{address}/openapi.json").json()
    assert spec["servers"] == [{"url": PREFIX}]
    assert set(spec["paths"]) == OWN[kind] | ALWAYS
    assert "securitySchemes" not in spec["components"]
    for path in OWN[kind]:
        operation = spec["paths"][path]["post"]
        body = operation["requestBody"]["content"]["application/json"]
        jsonschema.validate(body["example"], {**body["schema"], "components": spec["components"]})
        response = requests.post(address + path, json=body["example"])
        assert response.status_code == 200, response.text
        answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(response.json(), {**answer, "components": spec["components"]})
        assert response.json()["model"] == {"name": kind, "version": "1"}
    told = spec["paths"]["/"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(requests.get(address).json(), {**told, "components": spec["components"]})


@pytest.mark.parametrize(
    ("kind", "path"), [("marian", "/translate"), ("caption-vit", "/caption"), ("gpt2", "/generate")]
)
def test_pieces_of_a_stream_make_the_answer(serve: Serve, kind: str, path: str) -> None:
    address = serve(kind)
    operation = requests.get(f"{address}/openapi.json").json()["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]["example"] | {"decoding": {"beams": 1}}
    whole = requests.post(address + path, json=body).json()["results"][0]["hypotheses"][0]
    *pieces, (kind_of_last, done) = events_of(
        requests.post(address + path, json=body, headers={"accept": "text/event-stream"})
    )
    assert kind_of_last == "done"
    assert "".join(piece["delta"] for _, piece in pieces) == done["text"] == whole["text"]
    assert done["usage"]["output_tokens"] > 0


def test_one_file_as_base64_or_in_a_form_is_the_same_picture(serve: Serve, packages: Packages) -> None:
    address, pictures = serve("vit"), [noise(50, 40), noise(30, 30)]
    with open_model(packages("vit", "fp32").package.folder, threads=1) as model:
        expected = [[label.score for label in labels] for labels in model.classify(image=pictures, top_k=2)]
    files = [("image", (f"{index}.png", picture)) for index, picture in enumerate(pictures)]
    response = requests.post(f"{address}/classify", files=files, data={"top_k": "2"})
    assert [[label["score"] for label in result["labels"]] for result in response.json()["results"]] == expected


@pytest.mark.parametrize(
    ("kind", "path", "body", "sentence", "field"),
    [
        ("bert", "/classify", {"image": "AAE="}, "image[0] is an image; this model classifies texts", "image[0]"),
        ("bert", "/classify", {"text": ["ab", "ab " * 99]}, "text[1] has 200 tokens; the limit is 61", "text[1]"),
        ("bert", "/classify", {"text": ["ab"] * 257}, "text has 257 inputs; the limit is 256", "text"),
        ("vit", "/classify", {"image": "AAE="}, "image[0] is not an image", "image[0]"),
        ("marian", "/translate", {"text": "ab", "decoding": {"beams": 0}}, "decoding.beams is 0;", "decoding.beams"),
        (
            "decision_transformer",
            "/act",
            {"history": {"steps": [{"state": [1]}], "target_return": 1}},
            "history[0].steps[0].state has 1 numbers",
            "history[0].steps[0].state",
        ),
    ],
)
def test_the_model_itself_refuses_in_the_same_form(
    serve: Serve, kind: str, path: str, body: Any, sentence: str, field: str
) -> None:
    response = requests.post(serve(kind) + path, json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["message"].startswith(sentence)
    assert error["field"] == field


@pytest.mark.parametrize(("kind", "inputs"), [("bert", {"text", "text_pair"}), ("vit", {"image"})])
def test_a_classifier_is_described_with_the_inputs_that_it_takes(serve: Serve, kind: str, inputs: set[str]) -> None:
    spec = requests.get(f"{serve(kind)}/openapi.json").json()
    fields = set(spec["components"]["schemas"]["ClassifyRequest"]["properties"])
    assert fields - {"top_k", "threshold"} == inputs
    bodies = spec["paths"]["/classify"]["post"]["requestBody"]["content"]
    assert ("multipart/form-data" in bodies) == (kind == "vit")


def test_the_page_needs_nothing_from_elsewhere(serve: Serve) -> None:
    page = requests.get(f"{serve('bert')}/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    for elsewhere in ("http://", "https://", "src="):
        assert elsewhere not in page.text


def _loses_a_field(case: schemathesis.Case) -> bool:
    """A form has no way to send a list of nothing: such a field is left out, and the request is a right one."""
    is_form = case.media_type == "multipart/form-data" and isinstance(case.body, dict)
    return is_form and [] in case.body.values()


@pytest.mark.parametrize("mode", schemathesis.GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", ["marian", "bert", "vit", "decision_transformer"])
def test_whatever_fits_or_breaks_the_documentation_is_answered_as_documented(
    serve: Serve, kind: str, mode: schemathesis.GenerationMode
) -> None:
    """A schema cannot say all: what a tokenizer takes, or how soon is too soon. Refusing that is right."""
    address = serve(kind)
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    (path,) = OWN[kind]

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=schema[path]["POST"].as_strategy(mode))
    def ask(case: schemathesis.Case) -> None:
        assume(not _loses_a_field(case))
        response = case.call_and_validate(excluded_checks=[positive_data_acceptance, not_a_server_error])
        assert response.status_code != 500

    ask()
    assert requests.get(f"{address}/readyz").status_code == 200
