"""The number of CPUs follows the CPU quota of the control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwaiter.engine.cpus import available_cpus
from headwaiter.serving.preflight import cores


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


V1 = "3:memory:/pod\n1:cpu,cpuacct:{path}\n"
CASES = {
    "no control groups": ("", {}, 16),
    "v2 quota of a container": ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
    "v2 part of a CPU": ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
    "v2 less than one CPU": ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
    "v2 no limit": ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
    "v2 more than the cores": ("0::/\n", {"cpu.max": "3200000 100000\n"}, 16),
    "v2 lowest quota of all levels": (
        "0::/slice/unit\n",
        {"slice/cpu.max": "400000 100000\n", "slice/unit/cpu.max": "600000 100000\n"},
        4,
    ),
    "v2 path of the host in a container": ("0::/host/pod\n", {"cpu.max": "300000 100000\n"}, 3),
    "v1 quota": (
        V1.format(path="/pod"),
        {"cpu,cpuacct/pod/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/pod/cpu.cfs_period_us": "50000\n"},
        3,
    ),
    "v1 no limit": (
        V1.format(path="/"),
        {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
        16,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_available_cpus_follow_the_quota(case: str, tmp_path: Path) -> None:
    membership_text, files, expected = CASES[case]
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text(membership_text)
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert available_cpus(root, membership) == expected


def test_available_cpus_without_proc_are_the_affinity(tmp_path: Path) -> None:
    assert available_cpus(tmp_path, tmp_path / "missing") == 16


def test_cores_are_limited_by_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "membership").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr("headwaiter.engine.cpus.available_cpus.__defaults__", (tmp_path, tmp_path / "membership"))
    assert cores() == 1
