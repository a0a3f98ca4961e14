"""Comparison with peers, without the peers' own environments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwaiter_export.generated_sections import read_section
from loadtest import tables
from loadtest.peers import servers
from loadtest.peers.benchmark_models import BENCHMARK_MODELS
from loadtest.peers.common import engines
from loadtest.peers.comparison import content, rows, targets
from loadtest.peers.measure import ServerMeasurement, find_max_rate, sustained_rate
from loadtest.peers.servers import PROTOCOLS, PeerError, PeerServer, parse_answer, peer_names
from loadtest.traffic.samples import Sample

OPUS = BENCHMARK_MODELS["opus-mt-zh-en"]


def measured(server: str, rate: float, p95: float, index: int = 0, answers: str = "ab") -> ServerMeasurement:
    return ServerMeasurement(
        server=server,
        round=index,
        startup_seconds=2.0,
        memory_mb=100.0,
        single_client_p50_ms=10.0,
        single_client_p95_ms=20.0,
        saturated_rate=rate,
        rate=rate,
        p95_at_80_percent_ms=p95,
        p99_at_80_percent_ms=p95,
        answers=list(answers),
    )


ROUNDS = [
    measured("headwaiter grpc", 30, 400),
    measured("litserve", 20, 900, answers="ax"),
    measured("triton", 15, 500),
    measured("triton", 10, 500, 1),
    measured("litserve", 10, 900, 1),
    measured("headwaiter grpc", 40, 400, 1),
]


def test_rows_are_medians_with_speedups_of_the_same_round() -> None:
    all_servers = servers.servers(["litserve", "triton"])
    summaries = {row.server: row for row in rows(all_servers, ROUNDS)}
    assert list(summaries) == ["headwaiter grpc", "litserve", "triton"]
    assert (summaries["litserve"].rate, summaries["litserve"].rate_spread) == (15, 2)
    assert summaries["litserve"].speedup == (30 / 20 + 40 / 10) / 2
    assert summaries["headwaiter grpc"].speedup is None
    assert summaries["litserve"].matching_answers == 0.5


@pytest.mark.parametrize("capacity", [2.2, 7, 10, 21, 40])
def test_find_max_rate_is_close_to_capacity(capacity: float) -> None:
    rate = find_max_rate(lambda rate: rate <= capacity, first=10)
    assert 0.92 * capacity <= rate <= capacity


def test_find_max_rate_is_bounded() -> None:
    assert find_max_rate(lambda _: False, first=10) == 0
    assert find_max_rate(lambda _: True, first=10) > 40


@pytest.mark.parametrize("offered", [5, 10, 20])
def test_sustained_rate_growing_queue_is_not_counted(offered: int) -> None:
    """The simulated server answers ten requests per second, one at a time."""
    due, end, samples = 0.0, 0.0, []
    while due < 9.0:
        end = max(end, due) + 0.1
        samples.append(Sample(due, 0.0, end - due, None, "http", "m", "Translate", "OK"))
        due += 1 / offered
    assert sustained_rate(samples, 9.0) == pytest.approx(min(offered, 10), rel=0.05)


def test_rows_peer_without_answers_has_no_speedup() -> None:
    all_servers = servers.servers(["litserve"])
    summaries = rows(all_servers, [measured("headwaiter grpc", 30, 400), measured("litserve", 0, 900)])
    assert [(row.rate, row.rate_spread, row.speedup) for row in summaries] == [(30, 1, None), (0, None, None)]
    assert targets(OPUS.name, summaries) == []


def test_targets_compare_with_fastest_peer() -> None:
    rate, p95 = targets(OPUS.name, rows(servers.servers(["litserve", "triton"]), ROUNDS))
    assert (rate["target"], rate["measured"], rate["result"]) == (
        "opus-mt-zh-en: rate compared with litserve",
        round(35 / 15, 3),
        "met",
    )
    assert (p95["measured"], p95["result"]) == (round(400 / 900, 3), "met")
    assert targets(OPUS.name, rows(servers.servers([]), ROUNDS)) == []


def test_every_peer_is_pinned_and_documented() -> None:
    assert peer_names() == ("ctranslate2", "litserve", "ray-serve", "transformers", "triton")
    for name in peer_names():
        lines = (servers.FOLDER / name / "requirements.txt").read_text().splitlines()
        assert all("==" in line for line in lines), name
        assert PeerServer(name).settings
        assert "documentation = " in (servers.FOLDER / name / "peer.toml").read_text()
    assert [name for name in peer_names() if not PeerServer(name).supports("images")] == ["ctranslate2"]


REPLIES = [
    ("plain", {"answer": "hello"}, "hello"),
    ("kserve", {"outputs": [{"data": ["hello"]}]}, "hello"),
    ("headwaiter http", {"results": [{"hypotheses": [{"text": "hello"}]}]}, "hello"),
    ("headwaiter http", {"results": [{"labels": [{"index": 3}, {"index": 1}]}]}, "3 1"),
]


@pytest.mark.parametrize(("protocol", "reply", "answer"), REPLIES)
def test_protocols_encode_requests_and_parse_answers(protocol: str, reply: object, answer: str) -> None:
    assert parse_answer(protocol, reply) == answer
    path, body = PROTOCOLS[protocol](OPUS, "你好")
    assert path.startswith("/")
    assert "你好" in json.dumps(json.loads(body), ensure_ascii=False)


@pytest.mark.slow
def test_broken_peer_raises_with_cause(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="unknown peer: missing; available: ctranslate2, litserve"):
        servers.servers(["missing"])
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "peer.toml").write_text('description = "a"\nsettings = "b"\ntasks = ["images"]\n')
    (folder / "requirements.txt").write_text("--no-index\nno-such-package==1.0\n")
    (folder / "serve.py").write_text("raise SystemExit('model not found')\n")
    broken = PeerServer("broken", tmp_path, tmp_path / "build")
    with pytest.raises(PeerError, match=r"the environment of broken cannot be built \(.*no-such-package.*--peers"):
        broken.build()
    with (
        pytest.raises(PeerError, match=r"broken did not start; .*model not found"),
        broken.running(BENCHMARK_MODELS["vit-small"], 1, tmp_path),
    ):
        pass


@pytest.mark.parametrize("name", tables.SECTIONS)
def test_generated_section_is_up_to_date(name: str) -> None:
    section = tables.SECTIONS[name]
    assert read_section(name, section.file) == section.render(), "run `python -m loadtest.tables`"


def test_tables_contain_stored_results(tmp_path: Path) -> None:
    load, peers = tmp_path / "load", tmp_path / "peers.json"
    assert "not measured yet" in tables.load(load)
    assert "not measured yet" in tables.peers(peers)
    all_servers = servers.servers(["litserve", "triton"])
    comparison = {OPUS.name: content(OPUS, all_servers, ROUNDS, 15.0, 0.1)}
    peers.write_text(json.dumps(comparison))
    load.mkdir()
    machine = {"cores": 2, "cpu": "a chip", "vectors": "avx2"}
    ramp = {"scenario": "ramp", "models": [{"name": "opus", "precision": "int8"}], "verdict": {"summary": "Met."}}
    (load / "ramp.json").write_text(json.dumps(ramp | {"client_machine": machine}))
    day = {"policy": "delayed", "replica_hours": 90.4, "late_or_rejected": 0.0935}
    plan = {"summary": "22 requests/s.", "agreement": "Error 4 %.", "days": [day], "settings": {"cold_start": 20.0}}
    plan |= {"traffic": {"mean": 50.0, "bursts": 6, "burst_factor": 3.0}}
    (load / "capacity.json").write_text(json.dumps(plan))
    load_text, peers_text = tables.load(load), tables.peers(peers)
    assert "22 requests/s. Error 4 %. A simulated day with a mean of 50 requests/s, 6 bursts of 3 times" in load_text
    assert "delayed: 90 replica hours, 9.3 % late or rejected" in load_text
    assert "| ramp | opus int8 | Met. |" in load_text
    assert "| litserve | 15.0 | 2.00 | 2.75 (spread 2.67) | 10.0 ms | 900 ms | 100 MB | 2.0 s |" in peers_text
    assert "- target, opus-mt-zh-en: rate compared with litserve: at least 1.5, measured 2.333: met" in peers_text
    assert "| litserve | 15.0 | 2.75 | 900 ms |" in tables.summary(peers)


def test_every_peer_task_has_a_batch_size() -> None:
    assert engines.MAX_BATCH_SIZE.keys() == engines.FAST_ENGINES.keys()
