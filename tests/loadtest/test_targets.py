from __future__ import annotations

import pytest

from loadtest.rows import ratio
from loadtest.targets import Target, targets
from tests.loadtest.rows_kit import acted, classified, translated

RESULTS = [
    (Target("t", 1.95, 1.3), True, "≥ 1.3 ×", "met by 50 %"),
    (Target("t", 1.3, 1.3), True, "≥ 1.3 ×", "met by 0 %"),
    (Target("t", 0.91, 1.3), False, "≥ 1.3 ×", "missed by 30 %"),
    (Target("t", 1.5, 1.2, at_least=False), False, "≤ 1.2 ×", "missed by 25 %"),
    (Target("t", 0.6, 1.2, at_least=False), True, "≤ 1.2 ×", "met by 50 %"),
    (Target("t", -0.5, 1.0, False, "points"), True, "≤ 1 points", "met by 1.5 points"),
    (Target("t", 1.2, 1.0, False, "points"), False, "≤ 1 points", "missed by 0.2 points"),
]


@pytest.mark.parametrize(("target", "met", "wanted", "result"), RESULTS)
def test_says_by_how_much(target: Target, met: bool, wanted: str, result: str) -> None:
    assert (target.met, target.wanted, target.result) == (met, wanted, result)


def test_ratios_are_within_a_setting_and_a_precision() -> None:
    ours = translated("headwaiter fp32", 30)
    rows = [ours, translated("ctranslate2 fp32", 20), translated("ctranslate2 fp32", 5, at_once=8)]
    assert ratio(ours, rows, "ctranslate2 fp32") == 1.5
    assert ratio(ours, rows, "ctranslate2 int8") is None


def test_translation_is_judged_beside_both_peers() -> None:
    rows = [
        translated("headwaiter int8", 30, chrf_own_fp32=95.0),
        translated("ctranslate2 int8", 20, chrf_own_fp32=94.2),
        translated("transformers fp32", 10),
        translated("headwaiter int8", 6, at_once=1, chrf_own_fp32=90.0),
        translated("ctranslate2 int8", 8, at_once=1),
    ]
    assert [(each.title, round(each.measured, 3), each.met) for each in targets({"translation": rows})] == [
        ("throughput beside CTranslate2: int8, greedy, 64 at once", 1.5, True),
        ("latency of one beside CTranslate2: int8, greedy, 1 at once", 0.75, False),
        ("throughput beside transformers: int8, greedy, 64 at once", 3.0, False),
        ("chrF lost beyond CTranslate2's loss: int8, greedy, 64 at once", -0.8, True),
    ]


def test_encoders_are_judged_beside_the_bare_session_of_their_precision() -> None:
    rows = [
        classified("headwaiter fp32", 4.0),
        classified("headwaiter int8", 6.0),
        classified("onnxruntime fp32", 4.0),
        classified("onnxruntime int8", 8.0),
        classified("openvino fp32", 9.0),
    ]
    assert [(each.title, each.measured, each.met) for each in targets({"encoders": rows})] == [
        ("encoder beside a bare session: vit-b16, fp32", 1.0, True),
        ("encoder beside a bare session: vit-b16, int8", 0.75, False),
    ]


def test_a_late_step_is_judged_beside_an_early_one() -> None:
    (target,) = targets({"policy": [acted(5, 0.5), acted(100, 0.65)]})
    assert (target.measured, target.met) == (pytest.approx(1.3), False)


def test_of_what_was_not_measured_nothing_is_said() -> None:
    assert targets({}) == []
    assert targets({"translation": [translated("headwaiter fp32", 9)], "policy": [acted(5, 0.5)]}) == []
