"""Streaming over HTTP with server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from headwaiter.api.http.model import build_app
from tests.http_kit import FakeHandlers, error_of, events_of, http_server, post

EVENTS = {"accept": "text/event-stream"}
DONE = ("done", {"text": "all", "score": -0.5, "finish_reason": "length"})


@pytest.fixture
def fake_handlers() -> FakeHandlers:
    return FakeHandlers()


@pytest.fixture
def address(fake_handlers: FakeHandlers) -> Iterator[str]:
    with http_server(asyncio.run(build_app(fake_handlers.endpoint(), ready=lambda: True))) as url:
        yield url


@pytest.mark.parametrize("body", [{"text": "猫/狗"}, {"text": ["猫/狗"]}])
def test_stream_sends_deltas_then_done(address: str, fake_handlers: FakeHandlers, body: dict[str, Any]) -> None:
    response = post(f"{address}/translate", json=body, headers=EVENTS)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    assert events_of(response) == [("delta", {"delta": "猫"}), ("delta", {"delta": "狗"}), DONE]
    assert fake_handlers.counts.codes == {("TranslateStream", "OK"): 1}


def test_delta_with_line_breaks_is_one_event(address: str) -> None:
    response = post(f"{address}/generate", json={"prompt": "a\n\nb\r"}, headers=EVENTS)
    assert events_of(response) == [("delta", {"delta": "a\n\nb\r"}), DONE]


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream;q=0.9, */*", True),
        ("application/json, text/event-stream", False),
        ("*/*", False),
    ],
)
def test_accept_header_selects_events_or_json(address: str, accept: str, streams: bool) -> None:
    response = post(f"{address}/translate", json={"text": "cat"}, headers={"accept": accept})
    assert response.headers["content-type"].startswith("text/event-stream") == streams


def test_method_without_stream_returns_json(address: str) -> None:
    response = post(f"{address}/classify", json={"text": "cat"}, headers=EVENTS)
    assert response.json()["results"][0]["labels"][0]["name"] == "cat"


def test_failing_stream_ends_with_error_event(address: str, fake_handlers: FakeHandlers) -> None:
    response = post(f"{address}/translate", json={"text": "cat/late"}, headers=EVENTS)
    body = {"error": {"code": "DEADLINE_EXCEEDED", "message": "the deadline passed"}}
    assert events_of(response) == [("delta", {"delta": "cat"}), ("error", body)]
    assert fake_handlers.counts.codes == {("TranslateStream", "DEADLINE_EXCEEDED"): 1}


def test_internal_error_in_stream_reports_only_request_id(address: str) -> None:
    headers = EVENTS | {"x-request-id": "r1"}
    response = post(f"{address}/translate", json={"text": "cat/bug"}, headers=headers)
    event, body = events_of(response)[-1]
    assert (event, body["error"]["code"]) == ("error", "INTERNAL")
    assert "r1" in body["error"]["message"]
    assert "a secret" not in response.text


def test_failure_before_first_delta_has_error_status(address: str, fake_handlers: FakeHandlers) -> None:
    overloaded = post(f"{address}/translate", json={"text": "overloaded"}, headers=EVENTS)
    assert (overloaded.status_code, overloaded.headers["retry-after"]) == (429, "3")
    two_inputs = post(f"{address}/translate", json={"text": ["a", "b"]}, headers=EVENTS)
    assert two_inputs.status_code == 400
    error = error_of(two_inputs)
    assert (error["field"], error["limit"]) == ("text", 1)
    assert fake_handlers.counts.codes == {
        ("TranslateStream", "RESOURCE_EXHAUSTED"): 1,
        ("TranslateStream", "INVALID_ARGUMENT"): 1,
    }


@pytest.mark.parametrize("text", ["cat/wait", "wait"])
def test_client_disconnect_cancels_stream(address: str, fake_handlers: FakeHandlers, text: str) -> None:
    with pytest.raises(requests.exceptions.RequestException):
        post(f"{address}/translate", json={"text": text}, headers=EVENTS, timeout=1).raise_for_status()
    assert fake_handlers.waiting.is_set()
    fake_handlers.counts.wait_for("TranslateStream", "CANCELLED")
