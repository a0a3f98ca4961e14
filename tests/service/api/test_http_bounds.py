"""OpenAPI documents state the bounds and statuses that real models enforce."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headwaiter.api.errors import HTTP_STATUSES
from headwaiter.api.http.model import build_app
from headwaiter.api.keys import KeyFile
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from tests.conftest import Packages
from tests.counts_kit import Counts
from tests.http_kit import FakeHandlers, error_of, get, http_server, post
from tests.images_kit import random_png
from tests.openapi_kit import check_bound, stated_bounds, unbounded_numbers

Serve = Callable[[str], str]
IMAGE = base64.b64encode(random_png(32, 32)).decode()
STEP = {"state": [0.5] * 5, "action": {"continuous": [0.5] * 3}, "reward": 1.0}
HISTORY = {"steps": [STEP, STEP], "target_return": 4}
PAIR = {"first": "ab", "second": "ab"}
BODIES: dict[str, tuple[str, list[dict[str, Any]]]] = {  # a path, and bodies that together set all fields with bounds
    "marian": ("/translate", [{"text": "ab"}, {"text": ["ab"]}]),
    "caption-vit": ("/caption", [{"image": [IMAGE], "prompt": "ab"}]),
    "gpt2": ("/generate", [{"prompt": "ab"}, {"prompt": ["ab"]}]),
    "bert": ("/classify", [{"text": "ab"}, {"text": ["ab"]}, {"text_pair": PAIR}, {"text_pair": [PAIR]}]),
    "vit": ("/classify", [{"image": [IMAGE]}]),
    "detr": ("/detect", [{"image": [IMAGE]}]),
    "decision_transformer": ("/act", [{"history": HISTORY}, {"history": [HISTORY]}]),
}
UNBOUNDED = {"history.steps.action.scores"}  # ignored in requests
LIMITS = {"new_tokens": 4, "text": 12, "num_beams": 3}


@pytest.fixture(scope="module")
def serve(packages: Packages) -> Iterator[Serve]:
    with ExitStack() as stack:

        @cache
        def address(kind: str) -> str:
            folder = packages(kind, "fp32").package.folder
            args = ModelServerArgs(name=kind, folder=folder, settings={"threads": 1, "limits": LIMITS})
            model_server = ModelServer(args, Counts())
            stack.callback(model_server.close)
            app = asyncio.run(build_app(model_server.endpoint, ready=model_server.is_ready))
            return stack.enter_context(http_server(app))

        yield address


def _request_schema(spec: dict[str, Any], path: str) -> dict[str, Any]:
    schema: dict[str, Any] = spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return schema


@pytest.mark.parametrize("kind", BODIES)
def test_stated_bound_is_accepted_and_one_step_beyond_is_rejected(serve: Serve, kind: str) -> None:
    address, (path, bodies) = serve(kind), BODIES[kind]
    spec = get(f"{address}/openapi.json").json()
    bounds = stated_bounds(spec, _request_schema(spec, path))
    checked = {bound for bound in bounds for body in bodies if check_bound(address + path, body, bound)}
    assert [bound for bound in bounds if bound not in checked] == []


@pytest.mark.parametrize("kind", BODIES)
def test_every_number_of_a_request_has_stated_bounds(serve: Serve, kind: str) -> None:
    spec = get(f"{serve(kind)}/openapi.json").json()
    assert unbounded_numbers(spec, _request_schema(spec, BODIES[kind][0])) <= UNBOUNDED


@pytest.mark.parametrize(
    ("kind", "field", "keyword", "value"),
    [
        ("marian", ("decoding", "max_new_tokens"), "maximum", 4),
        ("marian", ("decoding", "num_beams"), "maximum", 3),
        ("marian", ("decoding", "temperature"), "minimum", 0.001),
        ("marian", ("decoding", "top_p"), "exclusiveMinimum", 0),
        ("marian", ("text", 0), "maxLength", 12),
        ("marian", ("text",), "maxItems", 256),
        ("bert", ("top_k",), "minimum", 1),
        ("bert", ("threshold",), "maximum", 1),
        ("decision_transformer", ("history", 0, "steps", 0, "state"), "minItems", 5),
        ("decision_transformer", ("seed",), "minimum", 0),
    ],
)
def test_openapi_states_limits_of_settings_and_manifest(
    serve: Serve, kind: str, field: tuple[Any, ...], keyword: str, value: float
) -> None:
    spec = get(f"{serve(kind)}/openapi.json").json()
    bounds = {
        (bound.path, bound.keyword): bound.value
        for bound in stated_bounds(spec, _request_schema(spec, BODIES[kind][0]))
    }
    assert bounds[field, keyword] == value


@pytest.mark.parametrize("timeout", ["0", "1000000000", "-1", "1.5", ""])
def test_timeout_header_beyond_stated_bounds_is_rejected(serve: Serve, timeout: str) -> None:
    address = serve("bert")
    (parameter,) = get(f"{address}/openapi.json").json()["paths"]["/classify"]["post"]["parameters"]
    assert parameter["schema"] == {"type": "integer", "minimum": 1, "maximum": 999_999_999}
    rejected = post(f"{address}/classify", json={"text": "ab"}, headers={parameter["name"]: timeout})
    assert (rejected.status_code, error_of(rejected)["field"]) == (400, "x-timeout-ms")


def test_timeout_header_at_stated_bounds_is_accepted(serve: Serve) -> None:
    address, body = serve("bert"), {"text": "ab"}
    assert post(f"{address}/classify", json=body, headers={"x-timeout-ms": "999999999"}).status_code == 200
    assert post(f"{address}/classify", json=body, headers={"x-timeout-ms": "1"}).status_code in (200, 504)


def test_body_states_size_limit_and_larger_one_is_rejected(serve: Serve) -> None:
    address = serve("vit")
    body = get(f"{address}/openapi.json").json()["paths"]["/classify"]["post"]["requestBody"]
    assert body["description"] == "At most 32 MiB. Images have at most 32,000,000 pixels each."
    rejected = post(f"{address}/classify", data=b" " * ((32 << 20) + 1), headers={"content-type": "application/json"})
    assert (rejected.status_code, error_of(rejected)["limit"]) == (400, 32)


FAILING_TEXTS = {429: "overloaded", 500: "bug", 503: "closed", 504: "late"}
# 404 and 405 are answers of other paths; an episode, which may be evicted (409), is not available over HTTP; and a
# client that has disconnected (499) receives nothing.
NOT_STATED = {404, 405, 409, 499}
SLOW_BODY = 408  # see test_slow_and_concurrent_bodies.py


def test_stated_statuses_are_those_that_the_server_answers_with(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("", encoding="utf-8")
    unlocked, locked = FakeHandlers().endpoint("Translate"), FakeHandlers().endpoint("Translate", keys=KeyFile(keys))
    with (
        http_server(asyncio.run(build_app(unlocked, ready=lambda: True, needs_key=True))) as address,
        http_server(asyncio.run(build_app(locked, ready=lambda: True, needs_key=True))) as locked_address,
    ):
        responses = get(f"{address}/openapi.json").json()["paths"]["/translate"]["post"]["responses"]
        answers = {status: post(f"{address}/translate", json={"text": text}) for status, text in FAILING_TEXTS.items()}
        answers[400] = post(f"{address}/translate", json={"text": 1})
        answers[401] = post(f"{locked_address}/translate", json={"text": "ab"})
        answers[200] = post(f"{address}/translate", json={"text": "ab"})
    assert {status: answer.status_code for status, answer in answers.items()} == {status: status for status in answers}
    assert answers.keys() == set(HTTP_STATUSES.values()) - NOT_STATED
    assert {int(status) for status in responses} == answers.keys() | {SLOW_BODY}
    for status, answer in answers.items():
        assert responses[str(status)].get("headers", {}).keys() <= {name.lower() for name in answer.headers}
