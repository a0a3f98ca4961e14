from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.attention import main
from loadtest.mixers import MIXERS
from loadtest.mixing import NAMES
from loadtest.scaling import Limits, Scaled, power


def rows(*milliseconds: float, megabytes: float = 1.0) -> list[Scaled]:
    return [Scaled("softmax", 128 * 2**index, each, 1.0, megabytes) for index, each in enumerate(milliseconds)]


def test_two_mixers_at_two_lengths(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chosen = ["--lengths", "64", "128", "--mixers", "softmax", "longformer", "--rounds", "1"]
    main([*chosen, "--results", str(tmp_path)])
    found = json.loads((tmp_path / "attention.json").read_text())
    measured = [(row["mixer"], row["length"]) for row in found["measured"]]
    assert measured == [(name, length) for length in (64, 128) for name in ("softmax", "longformer")]
    assert all(row["milliseconds"] > 0 and row["peak_mb"] > 0 for row in found["measured"])
    assert [(slope["mixer"], slope["theory"]) for slope in found["slopes"]] == [("softmax", 2), ("longformer", 1)]
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_every_mixer_has_a_contestant() -> None:
    assert set(NAMES) == set(MIXERS)


@pytest.mark.parametrize(("values", "expected"), [([1, 4, 16, 64], 2), ([9, 9, 1, 2, 4, 8], 1), ([3, 3], 0)])
def test_the_power_is_that_of_the_last_doublings(values: list[float], expected: float) -> None:
    lengths = [2**index for index in range(len(values))]
    assert power(lengths, values) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ([], None),
        (rows(400.0), "a pass would take about 1.6 s, the limit is 1 s"),
        (rows(200.0, 400.0), None),
        (rows(200.0, 600.0), "a pass would take about 1.8 s, the limit is 1 s"),
        (rows(1.0, megabytes=300), "it would need about 1,200 MB, the limit is 1,000 MB"),
    ],
)
def test_what_would_pass_the_limits_is_left_out_and_why(before: list[Scaled], reason: str | None) -> None:
    assert Limits(seconds=1.0, megabytes=1000.0).reason_against(before) == reason
