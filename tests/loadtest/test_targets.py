from __future__ import annotations

import pytest

from loadtest.engine.measurements import ratio
from loadtest.engine.targets import Target, targets
from tests.loadtest.measurements_kit import encoder_measurement, policy_measurement, translation_measurement

RESULTS = [
    (Target("t", 1.95, 1.3), True, "≥ 1.3 ×", "met by 50 %"),
    (Target("t", 1.3, 1.3), True, "≥ 1.3 ×", "met by 0 %"),
    (Target("t", 0.91, 1.3), False, "≥ 1.3 ×", "missed by 30 %"),
    (Target("t", 1.5, 1.2, at_least=False), False, "≤ 1.2 ×", "missed by 25 %"),
    (Target("t", 0.6, 1.2, at_least=False), True, "≤ 1.2 ×", "met by 50 %"),
    (Target("t", -0.5, 1.0, False, "points"), True, "≤ 1 points", "met by 1.5 points"),
    (Target("t", 1.2, 1.0, False, "points"), False, "≤ 1 points", "missed by 0.2 points"),
]


@pytest.mark.parametrize(("target", "met", "required", "result"), RESULTS)
def test_target_result_states_margin(target: Target, met: bool, required: str, result: str) -> None:
    assert (target.met, target.required, target.result) == (met, required, result)


def test_ratio_compares_same_setting_and_precision() -> None:
    own = translation_measurement("headwaiter fp32", 30)
    rows = [
        own,
        translation_measurement("ctranslate2 fp32", 20),
        translation_measurement("ctranslate2 fp32", 5, concurrency=8),
    ]
    assert ratio(own, rows, "ctranslate2 fp32") == 1.5
    assert ratio(own, rows, "ctranslate2 int8") is None


def test_targets_translation_compares_with_both_peers() -> None:
    rows = [
        translation_measurement("headwaiter int8", 30, chrf_vs_own_fp32=95.0),
        translation_measurement("ctranslate2 int8", 20, chrf_vs_own_fp32=94.2),
        translation_measurement("transformers fp32", 10),
        translation_measurement("headwaiter int8", 6, concurrency=1, chrf_vs_own_fp32=90.0),
        translation_measurement("ctranslate2 int8", 8, concurrency=1),
    ]
    assert [(target.title, round(target.measured, 3), target.met) for target in targets({"translation": rows})] == [
        ("throughput compared with CTranslate2: int8, greedy, concurrency 64", 1.5, True),
        ("single-request speed compared with CTranslate2: int8, greedy, concurrency 1", 0.75, False),
        ("throughput compared with transformers: int8, greedy, concurrency 64", 3.0, False),
        ("chrF loss in excess of CTranslate2's: int8, greedy, concurrency 64", -0.8, True),
    ]


def test_targets_encoders_compare_with_bare_session_of_same_precision() -> None:
    rows = [
        encoder_measurement("headwaiter fp32", 4.0),
        encoder_measurement("headwaiter int8", 6.0),
        encoder_measurement("onnxruntime fp32", 4.0),
        encoder_measurement("onnxruntime int8", 8.0),
        encoder_measurement("openvino fp32", 9.0),
    ]
    assert [(target.title, target.measured, target.met) for target in targets({"encoders": rows})] == [
        ("encoder compared with a bare session: vit-b16, fp32", 1.0, True),
        ("encoder compared with a bare session: vit-b16, int8", 0.75, False),
    ]


def test_targets_policy_compares_late_step_with_early_step() -> None:
    (target,) = targets({"policy": [policy_measurement(5, 0.5), policy_measurement(100, 0.65)]})
    assert (target.measured, target.met) == (pytest.approx(1.3), False)


def test_targets_without_measurements_are_omitted() -> None:
    assert targets({}) == []
    assert (
        targets(
            {"translation": [translation_measurement("headwaiter fp32", 9)], "policy": [policy_measurement(5, 0.5)]}
        )
        == []
    )
