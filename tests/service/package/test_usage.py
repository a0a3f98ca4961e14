from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headwaiter.package.manifest import open_package
from headwaiter.package.usage import is_in_use, mark_in_use
from tests.conftest import Packages

HOLD = """
import sys
from headwaiter.package.manifest import open_package
from headwaiter.package.usage import mark_in_use

mark = mark_in_use(open_package(sys.argv[1]))
print("marked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(packages: Packages) -> Path:
    return packages("distilbert", "fp32").package.folder


def test_package_is_in_use_until_all_marks_are_closed(folder: Path) -> None:
    marks = [mark_in_use(open_package(folder)) for _ in range(2)]
    for mark in marks:
        assert is_in_use(folder)
        assert mark is not None
        mark.close()
    assert not is_in_use(folder)


def test_package_of_killed_process_is_not_in_use(folder: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "marked\n"
        assert is_in_use(folder)
        process.kill()
        process.wait(timeout=10)
    assert not is_in_use(folder)


def test_missing_package_is_not_in_use(tmp_path: Path) -> None:
    assert not is_in_use(tmp_path / "nothing")
