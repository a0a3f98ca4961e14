from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.attention.__main__ import main
from loadtest.attention.mixer_worker import MIXER_NAMES
from loadtest.attention.mixers import MIXERS
from loadtest.attention.scaling import Limits, ScalingMeasurement, fit_exponent


def rows(*milliseconds: float, megabytes: float = 1.0) -> list[ScalingMeasurement]:
    return [
        ScalingMeasurement("softmax", 128 * 2**index, value, 1.0, megabytes) for index, value in enumerate(milliseconds)
    ]


def test_attention_benchmark_two_mixers_writes_measurements_slopes_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--lengths", "64", "128", "--mixers", "softmax", "longformer", "--rounds", "1"]
    main([*options, "--results", str(tmp_path)])
    results = json.loads((tmp_path / "attention.json").read_text())
    measured = [(row["mixer"], row["length"]) for row in results["measured"]]
    assert measured == [(name, length) for length in (64, 128) for name in ("softmax", "longformer")]
    assert all(row["milliseconds"] > 0 and row["peak_mb"] > 0 for row in results["measured"])
    assert [(slope["mixer"], slope["theory"]) for slope in results["slopes"]] == [("softmax", 2), ("longformer", 1)]
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_mixer_worker_names_match_mixers() -> None:
    assert set(MIXER_NAMES) == set(MIXERS)


@pytest.mark.parametrize(("values", "expected"), [([1, 4, 16, 64], 2), ([9, 9, 1, 2, 4, 8], 1), ([3, 3], 0)])
def test_fit_exponent_uses_last_doublings(values: list[float], expected: float) -> None:
    lengths = [2**index for index in range(len(values))]
    assert fit_exponent(lengths, values) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ([], None),
        (rows(400.0), "a forward pass would take about 1.6 s; the limit is 1 s"),
        (rows(200.0, 400.0), None),
        (rows(200.0, 600.0), "a forward pass would take about 1.8 s; the limit is 1 s"),
        (rows(1.0, megabytes=300), "about 1,200 MB would be needed; the limit is 1,000 MB"),
    ],
)
def test_limits_skip_reason_states_estimate_and_limit(before: list[ScalingMeasurement], reason: str | None) -> None:
    assert Limits(seconds=1.0, megabytes=1000.0).skip_reason(before) == reason
