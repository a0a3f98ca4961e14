from __future__ import annotations

import json
from pathlib import Path

from loadtest.engine import PARTS
from loadtest.results import Measured, load, save
from loadtest.rows import Row, merged
from loadtest.targets import targets
from tests.loadtest.rows_kit import acted, classified, translated

MACHINE = {"cpu": "a", "cores": 2, "threads": 2}


def measured(*rows: Row, machine: dict[str, object] = MACHINE) -> Measured:
    return Measured("what", machine, {row.contestant: {"headwaiter": "0.1.0"} for row in rows}, 0.1, rows)


def test_a_setting_measured_again_is_replaced_whole_and_others_stay() -> None:
    old = [
        translated("headwaiter fp32", 1),
        translated("ctranslate2 fp32", 2),
        translated("ctranslate2 fp32", 3, beams=4),
    ]
    new = [translated("headwaiter fp32", 9)]
    assert merged(old, new) == [new[0], old[2]]


def test_rows_keep_the_order_of_settings() -> None:
    rows = [translated("headwaiter fp32", 1, beams=b, at_once=a) for b, a in ((4, 1), (1, 64), (1, 8))]
    assert [row.setting for row in merged(rows[:1], rows[1:])] == [(1, 8), (1, 64), (4, 1)]


def test_both_positions_of_a_policy_are_of_one_run() -> None:
    assert merged([acted(5, 1.0), acted(100, 2.0)], [acted(5, 3.0)]) == [acted(5, 3.0)]


def test_rows_of_another_machine_do_not_mix() -> None:
    older = measured(translated("headwaiter fp32", 1, beams=4), machine=MACHINE | {"threads": 1})
    newer = measured(translated("headwaiter fp32", 2))
    assert newer.after(older) == newer
    assert newer.after(None) == newer


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    parts = {
        "translation": measured(translated("headwaiter fp32", 12.34), translated("ctranslate2 fp32", 10.0)),
        "encoders": measured(classified("headwaiter fp32", 4.0)),
        "policy": measured(acted(5, 0.5), acted(100, 0.7)),
    }
    file = tmp_path / "results" / "engine.json"
    save(file, parts, targets({name: part.rows for name, part in parts.items()}))
    loaded = load(file, PARTS)
    assert {name: list(part.rows) for name, part in loaded.items()} == {
        name: list(part.rows) for name, part in parts.items()
    }
    assert loaded["policy"].machine == MACHINE
    assert json.loads(file.read_text())["targets"][0] == {
        "target": "throughput beside CTranslate2: fp32, greedy, 64 at once",
        "wanted": "≥ 1.3 ×",
        "measured": 1.234,
        "result": "missed by 5 %",
    }


def test_a_part_that_was_not_run_stays_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    save(file, {"policy": measured(acted(5, 0.5))}, [])
    old = load(file, PARTS)
    save(file, old | {"encoders": measured(classified("headwaiter fp32", 4.0))}, [])
    assert load(file, PARTS).keys() == {"policy", "encoders"}


def test_a_file_from_before_there_were_parts_or_none_at_all_gives_nothing(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    assert load(file, PARTS) == {}
    file.write_text(json.dumps({"what": "translation", "measured": [{"contestant": "headwaiter fp32"}]}))
    assert load(file, PARTS) == {}
