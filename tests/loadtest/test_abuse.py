"""The abuse scenarios: their helpers, and a short run of all of them against tiny models on Ray."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from headwaiter.api.methods import METHODS
from loadtest.abuse.__main__ import ALL, run_scenarios
from loadtest.abuse.fuzz.messages import random_message
from loadtest.abuse.fuzz.mutations import mutate_bytes, mutate_json
from loadtest.abuse.fuzz.worker import Progress
from loadtest.abuse.http_connection import HttpConnection, HttpResponse, MalformedResponseError
from loadtest.abuse.report import Finding, Report, merge_rows
from loadtest.abuse.scenario import RunOptions
from loadtest.abuse.statistics import percentile
from tests.conftest import Packages

TINY_MODELS = {
    "translator": "marian",
    "captioner": "caption-vit",
    "texts": "bert",
    "pictures": "vit",
    "player": "decision_transformer",
}


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.95, 4), (0.0, 1)])
def test_percentile_is_smallest_value_that_covers_the_share(share: float, expected: float) -> None:
    assert percentile([4, 1, 3, 2], share) == expected


def test_report_counts_are_met_only_if_equal() -> None:
    lines: list[str] = []
    report = Report(lines.append)
    report.add_count("drain", "failed", [])
    report.add_count("drain", "failed", ["first", "second"])
    assert [finding.is_met for finding in report.findings] == [True, False]
    assert report.unmet == [report.findings[1]]
    assert lines == ["drain: failed: 0; expected: 0", "drain: failed: 2; expected: 0; NOT MET", "  first", "  second"]


def test_merge_rows_replaces_only_scenarios_that_ran() -> None:
    recorded = [["fuzz", "old", "1", ""], ["drain", "kept", "2", ""], ["gone", "removed", "3", ""]]
    rows = merge_rows(recorded, [Finding("fuzz", "new", "4", "0", is_met=False)], ["drain", "fuzz"])
    assert rows == [["drain", "kept", "2", ""], ["fuzz", "new", "4", "0 (**not met**)"]]


def test_mutations_are_repeatable_and_change_the_content() -> None:
    content, value = b"\x0a\x05hello" * 4, {"text": ["hello"], "decoding": {"num_beams": 2}}
    changed = [mutate_bytes(random.Random(seed), content) for seed in range(100)]
    assert changed == [mutate_bytes(random.Random(seed), content) for seed in range(100)]
    assert len(set(changed)) > 80
    values = [json.dumps(mutate_json(random.Random(seed), value)) for seed in range(100)]
    assert values == [json.dumps(mutate_json(random.Random(seed), value)) for seed in range(100)]
    assert len(set(values)) > 30


@pytest.mark.parametrize("method", sorted(METHODS))
def test_random_messages_are_repeatable_and_serializable(method: str) -> None:
    message_type = METHODS[method].request
    for seed in range(50):
        message = random_message(random.Random(seed), message_type)
        assert message.SerializeToString() == random_message(random.Random(seed), message_type).SerializeToString()


def test_progress_keeps_unexpected_answers() -> None:
    progress = Progress()
    progress.count("grpc", "INVALID_ARGUMENT", "request 1", "too long")
    progress.count("http", "INTERNAL", "request 2", "see the log")
    assert progress.codes == {("grpc", "INVALID_ARGUMENT"): 1, ("http", "INTERNAL"): 1}
    assert progress.unexpected == ["request 2: INTERNAL see the log"]


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (200, b"anything", "OK"),
        (400, b'{"error": {"code": "INVALID_ARGUMENT"}}', "INVALID_ARGUMENT"),
        (400, b"<html>", "HTTP 400"),
        (500, b"[]", "HTTP 500"),
    ],
)
def test_http_response_code_is_that_of_the_error(status: int, body: bytes, code: str) -> None:
    assert HttpResponse(status, {}, body).code == code


async def test_http_connection_reads_both_framings_and_reconnects() -> None:
    answers = iter(
        [
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            b"SMTP\r\n\r\n",
        ]
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            writer.write(next(answers))

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        connection = HttpConnection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        bodies = []
        for _ in range(2):
            await connection.send(b"GET")
            response = await connection.read_head()
            await connection.read_body(response)
            bodies.append(response.body)
        assert bodies == [b"ab", b"abc"]
        await connection.send(b"GET")
        with pytest.raises(MalformedResponseError):
            await connection.read_head()
        connection.close()


@pytest.mark.slowest
@pytest.mark.timeout(420)
@pytest.mark.parametrize("scenarios", [ALL[:5], ALL[5:]], ids=["shared", "own"])
def test_short_run_meets_all_expectations(packages: Packages, scenarios: list[str]) -> None:
    models = {
        name: {"path": str(packages(kind, "fp32").package.folder), "resources": {"cpus": 0.1}}
        for name, kind in TINY_MODELS.items()
    }
    report = Report(print)  # shown if the test fails
    run_scenarios(scenarios, models, RunOptions(requests=4000, is_short=True), report)
    assert {finding.scenario for finding in report.findings} == set(scenarios)
    assert [str(finding) for finding in report.unmet] == []
