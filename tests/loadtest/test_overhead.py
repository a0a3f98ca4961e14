"""The overload benchmark sorts calls by their outcome over both transports, and states its targets for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headwaiter.api.grpc_servicer import Servicer
from headwaiter.api.health import Health
from headwaiter.api.http.model import build_app
from loadtest.overhead.__main__ import targets
from loadtest.overhead.async_callers import Send, call_at_rate, call_n_times
from loadtest.overhead.overload import CallOutcomes, record_outcomes
from loadtest.overhead.plain_grpc_server import grpc_server
from loadtest.overhead.request_senders import http_translate_sender, translate_sender
from tests.http_kit import FakeHandlers, http_server

TEXTS = ["ab", "overloaded", "bug", "overloaded"]
OVERLOAD_ROW = {"goodput": 0.96, "rejected_p95_ms": 20.0, "answered_p95_ms": 2_300.0, "normal_p95_ms": 300.0}


class FakeServer(Servicer, Health):
    def __init__(self) -> None:
        self.endpoint = FakeHandlers().endpoint("Translate")


@asynccontextmanager
async def _sender(transport: str) -> AsyncIterator[Send]:
    server = FakeServer()
    if transport == "gRPC":
        async with grpc_server(server) as address, translate_sender(address, "tiny", TEXTS) as send:
            yield send
    else:
        app = await build_app(server.endpoint, ready=lambda: True)
        with http_server(app) as url:
            async with http_translate_sender(url.removesuffix("/models/tiny"), "tiny", TEXTS) as send:
                yield send


@pytest.mark.parametrize("transport", ["gRPC", "HTTP"])
async def test_record_outcomes_counts_answers_rejections_and_failures(transport: str) -> None:
    async with _sender(transport) as send:
        outcomes = await record_outcomes(send, lambda call: call_n_times(call, 3, 40), seconds=60)
    assert (len(outcomes.answered), len(outcomes.rejected), len(outcomes.others)) == (10, 20, 10)
    assert all(0 < latency <= end < 60 for end, latency in outcomes.answered + outcomes.rejected)


async def test_record_outcomes_unreachable_server_counts_as_failure() -> None:
    async with http_translate_sender("http://127.0.0.1:9", "tiny", TEXTS) as send:
        outcomes = await record_outcomes(send, lambda call: call_n_times(call, 1, 2), seconds=1)
    assert (len(outcomes.answered), len(outcomes.rejected), len(outcomes.others)) == (0, 0, 2)


async def test_open_loop_offers_the_rate_while_calls_are_pending() -> None:
    async def send(_: int) -> None:
        await asyncio.sleep(0.3)

    tasks = await call_at_rate(send, 50, 0.5)
    assert len(tasks) == pytest.approx(25, abs=2)


def test_outcomes_of_warm_up_and_after_the_end_do_not_count() -> None:
    outcomes = CallOutcomes(10.0, answered=[(1.9, 9.0), (2.0, 0.1), (9.9, 0.3), (10.0, 9.0)], rejected=[(5.0, 0.004)])
    assert outcomes.rate() == pytest.approx(2 / 8)
    assert outcomes.answered_p95_ms() == pytest.approx(290)
    assert outcomes.rejected_p95_ms() == pytest.approx(4)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({"goodput": 0.949}, ["goodput"]),
        ({"rejected_p95_ms": 20.1}, ["p95 of rejections"]),
        ({"answered_p95_ms": 2_301.0}, ["p95 of accepted requests"]),
    ],
)
def test_overload_targets_apply_to_each_transport(change: dict[str, float], missed: list[str]) -> None:
    rows = [{**OVERLOAD_ROW, "transport": "gRPC"}, {**OVERLOAD_ROW, **change, "transport": "HTTP"}]
    results = targets({"overload": {"rows": rows}})
    assert len(results) == 6
    titles = [result["target"].partition(" at five times the capacity over HTTP")[0] for result in results]
    assert [title for title, result in zip(titles, results, strict=True) if result["result"] == "missed"] == missed
