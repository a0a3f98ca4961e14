"""Server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from service.ingress.http.model import build_app
from tests.http_kit import Kitchen, error_of, events_of, listening

EVENTS = {"accept": "text/event-stream"}
DONE = ("done", {"text": "all", "score": -0.5})


@pytest.fixture
def kitchen() -> Kitchen:
    return Kitchen()


@pytest.fixture
def address(kitchen: Kitchen) -> Iterator[str]:
    with listening(asyncio.run(build_app(kitchen.endpoint(), ready=lambda: True))) as found:
        yield found


@pytest.mark.parametrize("body", [{"text": "汤/面"}, {"text": ["汤/面"]}])
def test_pieces_then_the_end(address: str, kitchen: Kitchen, body: dict[str, Any]) -> None:
    response = requests.post(f"{address}/translate", json=body, headers=EVENTS)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    assert events_of(response) == [("delta", {"delta": "汤"}), ("delta", {"delta": "面"}), DONE]
    assert kitchen.counts.codes == {("TranslateStream", "OK"): 1}


def test_pieces_with_line_breaks_stay_whole(address: str) -> None:
    response = requests.post(f"{address}/generate", json={"prompt": "a\n\nb\r"}, headers=EVENTS)
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
def test_who_asks_for_events_gets_them(address: str, accept: str, streams: bool) -> None:
    response = requests.post(f"{address}/translate", json={"text": "soup"}, headers={"accept": accept})
    assert response.headers["content-type"].startswith("text/event-stream") == streams


def test_a_method_without_a_stream_answers_at_once(address: str) -> None:
    response = requests.post(f"{address}/classify", json={"text": "soup"}, headers=EVENTS)
    assert response.json()["results"][0]["labels"][0]["name"] == "soup"


def test_a_stream_that_breaks_says_why(address: str, kitchen: Kitchen) -> None:
    response = requests.post(f"{address}/translate", json={"text": "soup/late"}, headers=EVENTS)
    broken = {"error": {"code": "DEADLINE_EXCEEDED", "message": "the deadline passed"}}
    assert events_of(response) == [("delta", {"delta": "soup"}), ("error", broken)]
    assert kitchen.counts.codes == {("TranslateStream", "DEADLINE_EXCEEDED"): 1}


def test_a_bug_in_a_stream_keeps_its_secret(address: str) -> None:
    headers = EVENTS | {"x-request-id": "r1"}
    response = requests.post(f"{address}/translate", json={"text": "soup/bug"}, headers=headers)
    words = "request r1 failed; the service's log says why"
    assert events_of(response)[-1] == ("error", {"error": {"code": "INTERNAL", "message": words}})


def test_what_fails_before_the_first_piece_has_a_status(address: str, kitchen: Kitchen) -> None:
    busy = requests.post(f"{address}/translate", json={"text": "busy"}, headers=EVENTS)
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "3")
    several = requests.post(f"{address}/translate", json={"text": ["a", "b"]}, headers=EVENTS)
    assert several.status_code == 400
    assert error_of(several)["message"] == "text has 2 inputs; a stream takes one"
    assert kitchen.counts.codes == {
        ("TranslateStream", "RESOURCE_EXHAUSTED"): 1,
        ("TranslateStream", "INVALID_ARGUMENT"): 1,
    }


@pytest.mark.parametrize("text", ["soup/wait", "wait"])
def test_a_reader_that_goes_away_ends_the_stream(address: str, kitchen: Kitchen, text: str) -> None:
    with pytest.raises(requests.exceptions.RequestException):
        requests.post(f"{address}/translate", json={"text": text}, headers=EVENTS, timeout=1).raise_for_status()
    assert kitchen.waiting.is_set()
    kitchen.counts.wait_for("TranslateStream", "CANCELLED")
