from __future__ import annotations

import json
from pathlib import Path

from loadtest.engine.__main__ import PARTS
from loadtest.engine.measurements import Measurement, merge_measurements
from loadtest.engine.targets import targets
from loadtest.results_file import PartResults, load, save
from tests.loadtest.measurements_kit import encoder_measurement, policy_measurement, translation_measurement

MACHINE = {"cpu": "a", "cores": 2, "threads": 2}


def measured(*rows: Measurement, machine: dict[str, object] = MACHINE) -> PartResults:
    return PartResults("description", machine, {row.backend: {"headwaiter": "0.1.0"} for row in rows}, 0.1, rows)


def test_merge_measurements_replaces_whole_settings() -> None:
    old = [
        translation_measurement("headwaiter fp32", 1),
        translation_measurement("ctranslate2 fp32", 2),
        translation_measurement("ctranslate2 fp32", 3, beams=4),
    ]
    new = [translation_measurement("headwaiter fp32", 9)]
    assert merge_measurements(old, new) == [new[0], old[2]]


def test_merge_measurements_sorts_by_setting() -> None:
    rows = [
        translation_measurement("headwaiter fp32", 1, beams=beams, concurrency=concurrency)
        for beams, concurrency in ((4, 1), (1, 64), (1, 8))
    ]
    assert [row.setting for row in merge_measurements(rows[:1], rows[1:])] == [(1, 8), (1, 64), (4, 1)]


def test_merge_measurements_policy_positions_come_from_one_run() -> None:
    assert merge_measurements(
        [policy_measurement(5, 1.0), policy_measurement(100, 2.0)], [policy_measurement(5, 3.0)]
    ) == [policy_measurement(5, 3.0)]


def test_merge_older_other_machine_is_ignored() -> None:
    older = measured(translation_measurement("headwaiter fp32", 1, beams=4), machine=MACHINE | {"threads": 1})
    newer = measured(translation_measurement("headwaiter fp32", 2))
    assert newer.merge_older(older) == newer
    assert newer.merge_older(None) == newer


def test_save_then_load_returns_same_results(tmp_path: Path) -> None:
    parts = {
        "translation": measured(
            translation_measurement("headwaiter fp32", 12.34), translation_measurement("ctranslate2 fp32", 10.0)
        ),
        "encoders": measured(encoder_measurement("headwaiter fp32", 4.0)),
        "policy": measured(policy_measurement(5, 0.5), policy_measurement(100, 0.7)),
    }
    file = tmp_path / "results" / "engine.json"
    save(file, parts, targets({name: part.rows for name, part in parts.items()}))
    loaded = load(file, PARTS)
    assert {name: list(part.rows) for name, part in loaded.items()} == {
        name: list(part.rows) for name, part in parts.items()
    }
    assert loaded["policy"].machine == MACHINE
    assert json.loads(file.read_text())["targets"][0] == {
        "target": "throughput compared with CTranslate2: fp32, greedy, concurrency 64",
        "required": "≥ 1.3 ×",
        "measured": 1.234,
        "result": "missed by 5 %",
    }


def test_save_keeps_parts_that_were_not_run(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    save(file, {"policy": measured(policy_measurement(5, 0.5))}, [])
    old = load(file, PARTS)
    save(file, old | {"encoders": measured(encoder_measurement("headwaiter fp32", 4.0))}, [])
    assert load(file, PARTS).keys() == {"policy", "encoders"}


def test_load_missing_file_or_parts_returns_empty(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    assert load(file, PARTS) == {}
    file.write_text(json.dumps({"what": "translation", "measured": [{"backend": "headwaiter fp32"}]}))
    assert load(file, PARTS) == {}
