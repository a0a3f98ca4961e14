"""One model over HTTP: paths, errors, sizes, keys, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from service.ingress.http.model import build_app
from service.ingress.http.routes import ROUTES
from service.keys import Keys, line_for, make_key
from tests.http_kit import PREFIX, Kitchen, error_of, listening

MB = 1 << 20


@pytest.fixture(scope="module")
def kitchen() -> Kitchen:
    return Kitchen()


@pytest.fixture(scope="module")
def address(kitchen: Kitchen) -> Iterator[str]:
    app = asyncio.run(build_app(kitchen.endpoint(), ready=lambda: True, message_mb=1))
    with listening(app) as found:
        yield found


@pytest.fixture(scope="module")
def translator() -> Iterator[str]:
    """Which does nothing but translate."""
    app = asyncio.run(build_app(Kitchen().endpoint("Translate", "TranslateStream"), ready=lambda: False))
    with listening(app) as found:
        yield found


@pytest.fixture(scope="module")
def calm() -> Iterator[str]:
    with listening(asyncio.run(build_app(Kitchen(calm=True).endpoint(), ready=lambda: True))) as found:
        yield found


def test_an_answer_has_the_names_of_the_protocol_and_plain_zeros(address: str, kitchen: Kitchen) -> None:
    response = requests.post(f"{address}/translate", json={"text": "two dishes"})
    assert response.status_code == 200
    assert response.json() == {"results": [{"hypotheses": [{"text": "两道菜", "score": -0.25}], "sentences": []}]}
    assert "两道菜" in response.text
    assert kitchen.counts.codes["Translate", "OK"]
    response = requests.post(f"{address}/act", json={"history": {"steps": []}})
    assert response.json()["results"] == [{"continuous": [0.1, -2.0], "scores": []}, {"discrete": 0, "scores": []}]
    response = requests.post(f"{address}/generate-images")
    assert response.json() == {"images": ["AHBpY3R1cmX/"]}


@pytest.mark.parametrize("path", ["", "/"])
def test_a_model_describes_itself(address: str, path: str) -> None:
    response = requests.get(address + path)
    assert response.status_code == 200
    told = response.json()
    assert (told["name"], told["limits"], told["labels"]) == ("tiny", {"text": 4}, [])
    assert "state_size" not in told
    assert requests.head(address + path).status_code == 200


def test_health_and_readiness(address: str, translator: str) -> None:
    for page in ("healthz", "readyz"):
        assert requests.get(f"{address}/{page}").status_code == 200
    assert requests.get(f"{translator}/healthz").json() == {"name": "tiny", "alive": True}
    waiting = requests.get(f"{translator}/readyz")
    assert waiting.status_code == 503
    assert error_of(waiting) == {"code": "UNAVAILABLE", "message": "tiny is not ready"}


@pytest.mark.parametrize(
    ("text", "status", "error", "headers"),
    [
        ("busy", 429, {"code": "RESOURCE_EXHAUSTED", "message": "tiny is busy"}, {"retry-after": "3"}),
        ("busy now", 429, {"code": "RESOURCE_EXHAUSTED", "message": "tiny is busy"}, {"retry-after": "1"}),
        ("full", 429, {"code": "RESOURCE_EXHAUSTED", "message": "all rows are taken"}, {"retry-after": "1"}),
        ("gone", 409, {"code": "ABORTED", "message": "the episode timed out"}, {}),
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
def test_failures_have_their_status_and_one_form(
    address: str, text: str, status: int, error: dict[str, Any], headers: dict[str, str], accept: str
) -> None:
    response = requests.post(f"{address}/translate", json={"text": text}, headers={"accept": accept})
    assert response.status_code == status
    assert error_of(response) == error
    assert headers.items() <= {name.lower(): value for name, value in response.headers.items()}.items()


def test_a_bug_tells_the_request_id_and_nothing_else(address: str) -> None:
    response = requests.post(f"{address}/translate", json={"text": "bug"}, headers={"x-request-id": "r1"})
    assert response.status_code == 500
    assert error_of(response) == {"code": "INTERNAL", "message": "request r1 failed; the service's log says why"}


@pytest.mark.parametrize(
    ("body", "content_type", "sentence", "field"),
    [
        (b"{", "application/json", "the body is not JSON: EOF while parsing an object at line 1 column 1", ""),
        (b"\xff\xfe", "application/json", "the body is not JSON: expected value at line 1 column 1", ""),
        (b'{"text": NaN}', "application/json", "the body is not JSON: expected value at line 1 column 10", ""),
        (b"[1]", "application/json", "the body is a list; it must be an object", ""),
        (b'"soup"', "application/json", 'the body is "soup"; it must be an object', ""),
        (b"", "application/json", "text is missing", "text"),
        (b"text=soup", "application/x-www-form-urlencoded", "content-type is application/x-www-form-", "content-type"),
        (b"{}", "text/plain; charset=utf-8", "content-type is text/plain; it must be", "content-type"),
        (b"{}", "multipart/form-data; boundary=x", "content-type is multipart/form-data; it must", "content-type"),
        (b'{"txt": "a"}', "application/json", "txt is not a field; text is", "txt"),
        (b'{"text": "a"}', "application/vnd.soup+json; charset=utf-8", None, None),
    ],
)
def test_bodies(address: str, body: bytes, content_type: str, sentence: str | None, field: str | None) -> None:
    response = requests.post(f"{address}/translate", data=body, headers={"content-type": content_type})
    if sentence is None:
        assert response.status_code == 200
        return
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "INVALID_ARGUMENT"
    assert error["message"].startswith(sentence)
    assert error["field"] == field


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "9" * 20])
def test_a_timeout_is_checked(address: str, timeout: str) -> None:
    response = requests.post(f"{address}/translate", json={"text": "a"}, headers={"x-timeout-ms": timeout})
    assert response.status_code == 400
    assert error_of(response)["field"] == "x-timeout-ms"


@pytest.mark.parametrize("route", [route for route in ROUTES if route.path != "/translate"], ids=lambda each: each.path)
def test_paths_of_other_tasks_say_what_the_model_does(translator: str, route: Any) -> None:
    for body in (b"", b"not even JSON", json.dumps({"text": "a"}).encode()):
        response = requests.post(translator + route.path, data=body)
        assert response.status_code == 405
        assert response.headers["allow"] == ""
        words = f"tiny does cooking: it has Describe, Translate, TranslateStream, not {route.method.name}"
        assert error_of(response) == {"code": "UNIMPLEMENTED", "message": words}


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/translate", 405, "POST"),
        ("DELETE", "/translate", 405, "POST"),
        ("POST", "", 405, "GET, HEAD"),
        ("POST", "/", 405, "GET, HEAD"),
        ("PUT", "/healthz", 405, "GET, HEAD"),
        ("POST", "/openapi.json", 405, "GET, HEAD"),
        ("GET", "/soup", 404, None),
        ("POST", "/translate/", 404, None),
        ("POST", "/translate/more", 404, None),
        ("OPTIONS", "/soup", 404, None),
    ],
)
def test_what_is_not_there(address: str, method: str, path: str, status: int, allow: str | None) -> None:
    response = requests.request(method, address + path, allow_redirects=False)
    assert response.status_code == status
    assert response.headers.get("allow") == allow
    error = error_of(response)
    assert error["code"] == ("NOT_FOUND" if status == 404 else "UNIMPLEMENTED")
    assert error["message"].startswith(f"{PREFIX}{path} is not there")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit_is_refused(address: str, kitchen: Kitchen, chunked: bool) -> None:
    before = len(kitchen.asked)
    body = json.dumps({"text": "a" * (2 * MB)}).encode()
    data = (body[start : start + 4096] for start in range(0, len(body), 4096)) if chunked else body
    response = requests.post(f"{address}/translate", data=data)
    assert response.status_code == 400
    size = "more than 1" if chunked else "2.0"
    message = f"the request has {size} MB; the limit is 1 MB"
    assert error_of(response) == {"code": "INVALID_ARGUMENT", "message": message, "field": "", "limit": 1}
    assert len(kitchen.asked) == before


def test_a_body_near_the_limit_is_read(address: str, kitchen: Kitchen) -> None:
    text = "s" * (MB - 100)
    assert requests.post(f"{address}/translate", json={"text": [text]}).status_code == 200
    assert kitchen.asked[-1].text[0] == text


def test_keys_are_asked_for_before_the_body_is_read(tmp_path: Any) -> None:
    key, file = make_key(), tmp_path / "keys"
    file.write_text(line_for("shop", key) + "\n")
    kitchen = Kitchen()
    app = asyncio.run(build_app(kitchen.endpoint(keys=Keys.load(file)), ready=lambda: True, needs_key=True))
    with listening(app) as address:
        for headers in ({}, {"authorization": key}, {"authorization": "Bearer hw_wrong"}):
            asked = [
                requests.post(f"{address}/translate", data=b"{", headers=headers),
                requests.post(f"{address}/detect", data=b"{", headers=headers),
                requests.get(address, headers=headers),
            ]
            for response in asked:
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert error_of(response)["code"] == "UNAUTHENTICATED"
        known = {"authorization": f"Bearer {key}"}
        assert requests.post(f"{address}/translate", json={"text": "a"}, headers=known).status_code == 200
        assert requests.get(address, headers=known).status_code == 200
        for page in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert requests.get(address + page).status_code == 200
        assert kitchen.counts.codes["Translate", "UNAUTHENTICATED"] == 3
        spec = requests.get(f"{address}/openapi.json").json()
        assert spec["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
        assert all(spec["paths"][path][way]["security"] for path, way in (("/translate", "post"), ("/", "get")))
        assert "401" in spec["paths"]["/translate"]["post"]["responses"]


def test_a_client_that_goes_away_takes_its_work_along(address: str, kitchen: Kitchen) -> None:
    with _half_sent(address, b'{"text": "wait"}', length=16):
        assert kitchen.waiting.wait(10)
    kitchen.counts.wait_for("Translate", "CANCELLED")


def test_a_client_that_goes_away_while_it_sends_is_counted(address: str, kitchen: Kitchen) -> None:
    before = len(kitchen.asked)
    with _half_sent(address, b'{"prompt": "w', length=16, path="/generate"):
        pass
    kitchen.counts.wait_for("Generate", "CANCELLED")
    assert len(kitchen.asked) == before


def _half_sent(address: str, body: bytes, *, length: int, path: str = "/translate") -> socket.socket:
    parts = urlsplit(address + path)
    connection = socket.create_connection((parts.hostname, parts.port))
    head = f"POST {parts.path} HTTP/1.1\r\nhost: tiny\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {length}\r\n\r\n".encode() + body)
    return connection


def test_failures_of_chosen_inputs_are_told_in_the_names_of_the_body(address: str) -> None:
    response = requests.post(f"{address}/classify", json={"text": ["a", "input[1].text"]})
    error = error_of(response)
    assert (error["field"], error["message"]) == ("text[1]", "text[1] is burnt")


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["wait a bit", "iVBORw=="]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["text", "text_pair", "image", "prompt", "history", "decoding", "top_k", "threshold", "count", "seed", "greedy"]
)
BODIES = st.dictionaries(NAMES | st.text(max_size=5), JSONS, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    route=st.sampled_from(ROUTES),
    body=BODIES.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=64),
    accept=st.sampled_from(["application/json", "text/event-stream"]),
    content_type=st.sampled_from(
        ["application/json", "multipart/form-data; boundary=x", "multipart/form-data", "", ";"]
    ),
)
def test_whatever_is_sent_is_answered_or_refused(
    calm: str, route: Any, body: bytes, accept: str, content_type: str
) -> None:
    headers = {"accept": accept, "content-type": content_type}
    response = requests.post(calm + route.path, data=body, headers=headers)
    assert response.status_code in (200, 400, 405), response.text
    if response.status_code != 200:
        assert error_of(response)["message"]
