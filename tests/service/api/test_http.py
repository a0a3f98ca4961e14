"""HTTP application of one model: paths, errors, size limits, API keys and disconnecting clients."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter.api.http.model import build_app
from headwaiter.api.http.routes import ROUTES
from headwaiter.api.keys import Keys, format_key_line, make_key
from tests.http_kit import (
    PREFIX,
    REQUEST_TIMEOUT_SECONDS,
    FakeHandlers,
    error_of,
    get,
    head,
    http_server,
    post,
    request,
)

MB = 1 << 20


@pytest.fixture(scope="module")
def fake_handlers() -> FakeHandlers:
    return FakeHandlers()


@pytest.fixture(scope="module")
def address(fake_handlers: FakeHandlers) -> Iterator[str]:
    app = asyncio.run(build_app(fake_handlers.endpoint(), ready=lambda: True, message_mb=1))
    with http_server(app) as url:
        yield url


@pytest.fixture(scope="module")
def translator() -> Iterator[str]:
    """A model that supports only translation and is not ready."""
    app = asyncio.run(build_app(FakeHandlers().endpoint("Translate", "TranslateStream"), ready=lambda: False))
    with http_server(app) as url:
        yield url


@pytest.fixture(scope="module")
def always_successful() -> Iterator[str]:
    app = asyncio.run(build_app(FakeHandlers(always_succeed=True).endpoint(), ready=lambda: True))
    with http_server(app) as url:
        yield url


def test_response_uses_proto_field_names_and_includes_defaults(address: str, fake_handlers: FakeHandlers) -> None:
    response = post(f"{address}/translate", json={"text": "two cats"})
    assert response.status_code == 200
    assert response.json() == {
        "results": [{"hypotheses": [{"text": "两只猫", "score": -0.25, "finish_reason": "stop"}], "sentences": []}]
    }
    assert "两只猫" in response.text
    assert fake_handlers.counts.codes["Translate", "OK"]
    response = post(f"{address}/act", json={"history": {"steps": []}})
    assert response.json()["results"] == [{"continuous": [0.1, -2.0], "scores": []}, {"discrete": 0, "scores": []}]
    response = post(f"{address}/generate-images")
    assert response.json() == {"images": ["AHBpY3R1cmX/"]}


@pytest.mark.parametrize("path", ["", "/"])
def test_root_path_returns_model_description(address: str, path: str) -> None:
    response = get(address + path)
    assert response.status_code == 200
    description = response.json()
    assert (description["name"], description["limits"], description["labels"]) == ("tiny", {"text": 4}, [])
    assert "state_size" not in description
    assert head(address + path).status_code == 200


def test_health_endpoints_report_liveness_and_readiness(address: str, translator: str) -> None:
    for page in ("healthz", "readyz"):
        assert get(f"{address}/{page}").status_code == 200
    assert get(f"{translator}/healthz").json() == {"name": "tiny", "alive": True}
    not_ready = get(f"{translator}/readyz")
    assert not_ready.status_code == 503
    assert error_of(not_ready) == {"code": "UNAVAILABLE", "message": "tiny is not ready"}


@pytest.mark.parametrize(
    ("text", "status", "error", "headers"),
    [
        ("overloaded", 429, {"code": "RESOURCE_EXHAUSTED", "message": "tiny is overloaded"}, {"retry-after": "3"}),
        (
            "overloaded briefly",
            429,
            {"code": "RESOURCE_EXHAUSTED", "message": "tiny is overloaded"},
            {"retry-after": "1"},
        ),
        ("full", 429, {"code": "RESOURCE_EXHAUSTED", "message": "all slots are in use"}, {"retry-after": "1"}),
        ("expired", 409, {"code": "ABORTED", "message": "the episode timed out"}, {}),
        ("late", 504, {"code": "DEADLINE_EXCEEDED", "message": "the deadline passed"}, {}),
        ("closed", 503, {"code": "UNAVAILABLE", "message": "tiny is closing"}, {}),
        (
            "long",
            400,
            {
                "code": "INVALID_ARGUMENT",
                "message": "text[0] has 9 characters; the limit is 4",
                "field": "text[0]",
                "limit": 4,
            },
            {},
        ),
    ],
)
@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
def test_failed_request_has_status_and_error_body(
    address: str, text: str, status: int, error: dict[str, Any], headers: dict[str, str], accept: str
) -> None:
    response = post(f"{address}/translate", json={"text": text}, headers={"accept": accept})
    assert response.status_code == status
    assert error_of(response) == error
    assert headers.items() <= {name.lower(): value for name, value in response.headers.items()}.items()


def test_internal_error_reports_only_request_id(address: str) -> None:
    response = post(f"{address}/translate", json={"text": "bug"}, headers={"x-request-id": "r1"})
    assert response.status_code == 500
    message = "request r1 failed with an internal error; see the server log"
    assert error_of(response) == {"code": "INTERNAL", "message": message}


@pytest.mark.parametrize(
    ("body", "content_type", "field", "excerpts"),
    [
        (b"{", "application/json", "", ["not valid JSON", "line 1 column 1"]),
        (b"\xff\xfe", "application/json", "", ["not valid JSON", "line 1 column 1"]),
        (b'{"text": NaN}', "application/json", "", ["not valid JSON", "line 1 column 10"]),
        (b"[1]", "application/json", "", ["a list", "an object"]),
        (b'"cat"', "application/json", "", ['"cat"', "an object"]),
        (b"", "application/json", "text", ["missing"]),
        (b"text=a", "application/x-www-form-urlencoded", "content-type", ["application/x-www-form-urlencoded"]),
        (b"{}", "text/plain; charset=utf-8", "content-type", ["text/plain", "application/json"]),
        (b"{}", "multipart/form-data; boundary=x", "content-type", ["multipart/form-data", "application/json"]),
        (b'{"txt": "a"}', "application/json", "txt", ["txt is not a known field", "text"]),
    ],
)
def test_invalid_body_is_rejected_with_field(
    address: str, body: bytes, content_type: str, field: str, excerpts: list[str]
) -> None:
    response = post(f"{address}/translate", data=body, headers={"content-type": content_type})
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "INVALID_ARGUMENT"
    assert [excerpt for excerpt in excerpts if excerpt not in error["message"]] == []
    assert error["field"] == field


def test_body_with_json_suffix_content_type_is_accepted(address: str) -> None:
    headers = {"content-type": "application/vnd.example+json; charset=utf-8"}
    assert post(f"{address}/translate", data=b'{"text": "a"}', headers=headers).status_code == 200


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "9" * 20])
def test_invalid_timeout_header_is_rejected(address: str, timeout: str) -> None:
    response = post(f"{address}/translate", json={"text": "a"}, headers={"x-timeout-ms": timeout})
    assert response.status_code == 400
    assert error_of(response)["field"] == "x-timeout-ms"


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.path != "/translate"], ids=lambda route: route.path
)
def test_path_of_other_task_is_rejected_with_supported_methods(translator: str, route: Any) -> None:
    for body in (b"", b"not even JSON", json.dumps({"text": "a"}).encode()):
        response = post(translator + route.path, data=body)
        assert response.status_code == 405
        assert response.headers["allow"] == ""
        error = error_of(response)
        assert error["code"] == "UNIMPLEMENTED"
        assert f"does not support {route.method.name}" in error["message"]
        assert error["message"].endswith("it supports Describe, Translate, TranslateStream")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/translate", 405, "POST"),
        ("DELETE", "/translate", 405, "POST"),
        ("POST", "", 405, "GET, HEAD"),
        ("POST", "/", 405, "GET, HEAD"),
        ("PUT", "/healthz", 405, "GET, HEAD"),
        ("POST", "/openapi.json", 405, "GET, HEAD"),
        ("GET", "/unknown", 404, None),
        ("POST", "/translate/", 404, None),
        ("POST", "/translate/more", 404, None),
        ("OPTIONS", "/unknown", 404, None),
    ],
)
def test_unknown_path_or_method_is_rejected(
    address: str, method: str, path: str, status: int, allow: str | None
) -> None:
    response = request(method, address + path, allow_redirects=False)
    assert response.status_code == status
    assert response.headers.get("allow") == allow
    error = error_of(response)
    assert error["code"] == ("NOT_FOUND" if status == 404 else "UNIMPLEMENTED")
    assert error["message"].startswith(f"{PREFIX}{path} does not {'exist' if status == 404 else 'allow'}")


@pytest.mark.parametrize("chunked", [False, True])
def test_body_above_size_limit_is_rejected(address: str, fake_handlers: FakeHandlers, chunked: bool) -> None:
    before = len(fake_handlers.requests)
    body = json.dumps({"text": "a" * (2 * MB)}).encode()
    data = (body[start : start + 4096] for start in range(0, len(body), 4096)) if chunked else body
    response = post(f"{address}/translate", data=data)
    assert response.status_code == 400
    size = "more than 1" if chunked else "2.0"
    message = f"the request has {size} MiB; the limit is 1 MiB"
    assert error_of(response) == {"code": "INVALID_ARGUMENT", "message": message, "field": "", "limit": 1}
    assert len(fake_handlers.requests) == before


def test_body_just_below_size_limit_is_accepted(address: str, fake_handlers: FakeHandlers) -> None:
    text = "s" * (MB - 100)
    assert post(f"{address}/translate", json={"text": [text]}).status_code == 200
    assert fake_handlers.requests[-1].text[0] == text


def test_api_key_is_checked_before_body_is_read(tmp_path: Any) -> None:
    key, file = make_key(), tmp_path / "keys"
    file.write_text(format_key_line("client", key) + "\n")
    fake_handlers = FakeHandlers()
    app = asyncio.run(build_app(fake_handlers.endpoint(keys=Keys.load(file)), ready=lambda: True, needs_key=True))
    with http_server(app) as address:
        for headers in ({}, {"authorization": key}, {"authorization": "Bearer hw_wrong"}):
            responses = [
                post(f"{address}/translate", data=b"{", headers=headers),
                post(f"{address}/detect", data=b"{", headers=headers),
                get(address, headers=headers),
            ]
            for response in responses:
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert error_of(response)["code"] == "UNAUTHENTICATED"
        headers = {"authorization": f"Bearer {key}"}
        assert post(f"{address}/translate", json={"text": "a"}, headers=headers).status_code == 200
        assert get(address, headers=headers).status_code == 200
        for page in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert get(address + page).status_code == 200
        assert fake_handlers.counts.codes["Translate", "UNAUTHENTICATED"] == 3
        spec = get(f"{address}/openapi.json").json()
        assert spec["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
        assert all(spec["paths"][path][method]["security"] for path, method in (("/translate", "post"), ("/", "get")))
        assert "401" in spec["paths"]["/translate"]["post"]["responses"]


def test_client_disconnect_cancels_request(address: str, fake_handlers: FakeHandlers) -> None:
    with _send_raw(address, b'{"text": "wait"}', length=16):
        assert fake_handlers.waiting.wait(10)
    fake_handlers.counts.wait_for("Translate", "CANCELLED")


def test_client_disconnect_during_upload_is_recorded(address: str, fake_handlers: FakeHandlers) -> None:
    before = len(fake_handlers.requests)
    with _send_raw(address, b'{"prompt": "w', length=16, path="/generate"):
        pass
    fake_handlers.counts.wait_for("Generate", "CANCELLED")
    assert len(fake_handlers.requests) == before


def _send_raw(address: str, body: bytes, *, length: int, path: str = "/translate") -> socket.socket:
    """Send a request with the given content length and leave the connection open."""
    url = urlsplit(address + path)
    connection = socket.create_connection((url.hostname, url.port), timeout=REQUEST_TIMEOUT_SECONDS)
    head = f"POST {url.path} HTTP/1.1\r\nhost: tiny\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {length}\r\n\r\n".encode() + body)
    return connection


def test_error_about_oneof_input_uses_json_field_name(address: str) -> None:
    response = post(f"{address}/classify", json={"text": ["a", "input[1].text"]})
    error = error_of(response)
    assert (error["field"], error["message"]) == ("text[1]", "text[1] is invalid")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["wait a bit", "iVBORw=="]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["text", "text_pair", "image", "prompt", "history", "decoding", "top_k", "threshold", "count", "seed", "greedy"]
)
BODIES = st.dictionaries(NAMES | st.text(max_size=5), VALUES, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    route=st.sampled_from(ROUTES),
    body=BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=64),
    accept=st.sampled_from(["application/json", "text/event-stream"]),
    content_type=st.sampled_from(
        ["application/json", "multipart/form-data; boundary=x", "multipart/form-data", "", ";"]
    ),
)
def test_arbitrary_body_never_causes_server_error(
    always_successful: str, route: Any, body: bytes, accept: str, content_type: str
) -> None:
    headers = {"accept": accept, "content-type": content_type}
    response = post(always_successful + route.path, data=body, headers=headers)
    assert response.status_code in (200, 400, 405), response.text
    if response.status_code != 200:
        assert error_of(response)["message"]
