"""Peers as far as they need no environment of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from export import readme
from loadtest import tables
from loadtest.peers import entrants
from loadtest.peers.common import engines
from loadtest.peers.entrants import DIALECTS, PEERS, Peer, PeerError, answer_of
from loadtest.peers.measure import Measured, highest, kept_up
from loadtest.peers.table import content, rows, targets
from loadtest.peers.weights import SUBJECTS
from loadtest.traffic.samples import Sample

OPUS = SUBJECTS["opus-mt-zh-en"]


def measured(entrant: str, rate: float, p95: float, index: int = 0, answers: str = "ab") -> Measured:
    return Measured(
        entrant=entrant,
        round=index,
        started_seconds=2.0,
        memory_mb=100.0,
        alone_p50_ms=10.0,
        alone_p95_ms=20.0,
        saturated_rate=rate,
        rate=rate,
        usual_p95_ms=p95,
        usual_p99_ms=p95,
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


def test_rows_are_medians_with_ratios_of_the_same_round() -> None:
    everyone = entrants.entrants(["litserve", "triton"])
    found = {row.entrant: row for row in rows(everyone, ROUNDS)}
    assert list(found) == ["headwaiter grpc", "litserve", "triton"]
    assert (found["litserve"].rate, found["litserve"].rate_spread) == (15, 2)
    assert found["litserve"].times_as_much == (30 / 20 + 40 / 10) / 2
    assert found["headwaiter grpc"].times_as_much is None
    assert found["litserve"].same_answers == 0.5


@pytest.mark.parametrize("knee", [2.2, 7, 10, 21, 40])
def test_the_search_finds_the_highest_rate_that_holds(knee: float) -> None:
    found = highest(lambda rate: rate <= knee, first=10)
    assert 0.92 * knee <= found <= knee


def test_the_search_gives_up() -> None:
    assert highest(lambda _: False, first=10) == 0
    assert highest(lambda _: True, first=10) > 40


@pytest.mark.parametrize("offered", [5, 10, 20])
def test_a_line_that_grows_is_not_carried(offered: int) -> None:
    """One after another, ten a second, whatever comes."""
    due, end, samples = 0.0, 0.0, []
    while due < 9.0:
        end = max(end, due) + 0.1
        samples.append(Sample(due, 0.0, end - due, None, "http", "m", "Translate", "OK"))
        due += 1 / offered
    assert kept_up(samples, 9.0) == pytest.approx(min(offered, 10), rel=0.05)


def test_a_peer_that_carried_nothing_is_shown_as_such() -> None:
    everyone = entrants.entrants(["litserve"])
    found = rows(everyone, [measured("headwaiter grpc", 30, 400), measured("litserve", 0, 900)])
    assert [(row.rate, row.rate_spread, row.times_as_much) for row in found] == [(30, 1, None), (0, None, None)]
    assert targets(OPUS.name, found) == []


def test_targets_are_judged_by_the_best_peer() -> None:
    rate, delay = targets(OPUS.name, rows(entrants.entrants(["litserve", "triton"]), ROUNDS))
    assert (rate["target"], rate["measured"], rate["result"]) == (
        "opus-mt-zh-en: rate beside litserve",
        round(35 / 15, 3),
        "met",
    )
    assert (delay["measured"], delay["result"]) == (round(400 / 900, 3), "met")
    assert targets(OPUS.name, rows(entrants.entrants([]), ROUNDS)) == []


def test_every_peer_is_pinned_and_says_what_its_documentation_recommends() -> None:
    assert PEERS == ("ctranslate2", "litserve", "ray-serve", "transformers", "triton")
    for name in PEERS:
        lines = (entrants.FOLDER / name / "requirements.txt").read_text().splitlines()
        assert all("==" in line for line in lines), name
        assert Peer(name).settings
        assert "documentation = " in (entrants.FOLDER / name / "peer.toml").read_text()
    assert [name for name in PEERS if not Peer(name).does("images")] == ["ctranslate2"]


REPLIES = [
    ("plain", {"answer": "hello"}, "hello"),
    ("kserve", {"outputs": [{"data": ["hello"]}]}, "hello"),
    ("headwaiter http", {"results": [{"hypotheses": [{"text": "hello"}]}]}, "hello"),
    ("headwaiter http", {"results": [{"labels": [{"index": 3}, {"index": 1}]}]}, "3 1"),
]


@pytest.mark.parametrize(("dialect", "reply", "answer"), REPLIES)
def test_all_dialects_say_the_same(dialect: str, reply: object, answer: str) -> None:
    assert answer_of(dialect, reply) == answer
    path, body = DIALECTS[dialect](OPUS, "你好")
    assert path.startswith("/")
    assert "你好" in json.dumps(json.loads(body), ensure_ascii=False)


@pytest.mark.slow
def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="there is no peer soup; there are ctranslate2, litserve"):
        entrants.entrants(["soup"])
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "peer.toml").write_text('what = "a"\nsettings = "b"\ntasks = ["images"]\n')
    (folder / "requirements.txt").write_text("--no-index\nno-such-package==1.0\n")
    (folder / "serve.py").write_text("raise SystemExit('no soup today')\n")
    broken = Peer("broken", tmp_path, tmp_path / "build")
    with pytest.raises(PeerError, match=r"the environment of broken cannot be built \(.*no-such-package.*--peers"):
        broken.build()
    with (
        pytest.raises(PeerError, match="broken did not start; its last words: no soup today"),
        broken.running(SUBJECTS["vit-small"], 1, tmp_path),
    ):
        pass


@pytest.mark.parametrize("name", tables.PARTS)
def test_the_readme_has_the_tables_of_the_results(name: str) -> None:
    """`python -m loadtest.tables` writes them."""
    assert readme.part(name) == tables.PARTS[name]()


def test_tables_hold_what_was_measured(tmp_path: Path) -> None:
    assert tables.tables(tmp_path).count("not measured yet") == 2
    everyone = entrants.entrants(["litserve", "triton"])
    whole = {OPUS.name: content(OPUS, everyone, ROUNDS, 15.0, 0.1)}
    (tmp_path / "peers.json").write_text(json.dumps(whole))
    (tmp_path / "load").mkdir()
    machine = {"cores": 2, "cpu": "a chip", "vectors": "avx2"}
    ramp = {"scenario": "ramp", "models": [{"name": "opus", "precision": "int8"}], "verdict": {"sentence": "It holds."}}
    (tmp_path / "load" / "ramp.json").write_text(json.dumps(ramp | {"machine_of_the_callers": machine}))
    day = {"policy": "one that waits", "replica_hours": 90.4, "beyond": 0.0935}
    plan = {"sentence": "One carries 22.", "agreement": "Off by 4 %.", "days": [day], "settings": {"cold_start": 20.0}}
    plan |= {"traffic": {"mean": 50.0, "bursts": 6, "burst_times": 3.0}}
    (tmp_path / "load" / "capacity.json").write_text(json.dumps(plan))
    found = tables.tables(tmp_path)
    assert "One carries 22. Off by 4 %. A day of 50 calls a second with 6 bursts of 3 times as many" in found
    assert "one that waits: 90 replica hours, 9.3 % late or refused" in found
    assert "| ramp | opus int8 | It holds. |" in found
    assert "| litserve | 15.0 | 2.00 | 2.75 (spread 2.67) | 10.0 ms | 900 ms | 100 MB | 2.0 s |" in found
    assert "- target, opus-mt-zh-en: rate beside litserve: at least 1.5, measured 2.333: met" in found


def test_every_task_of_the_peers_has_its_batch() -> None:
    assert engines.BATCH.keys() == engines.FAST.keys()
