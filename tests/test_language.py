"""The project speaks the field's words: retired identifiers and phrases do not come back, and files stay short."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".md", ".proto", ".yaml", ".toml", ".html", ".Dockerfile", ".sh"}
# Files that have to name retired words.
EXEMPT = {"CHANGELOG.md", "tests/test_language.py"}
MAX_LINES = 400
MAX_README_LINES = 200

RETIRED_IDENTIFIERS = (
    *("Desk", "Who", "Line", "Lanes", "Pace", "Voice", "Wish", "Choosing", "Moment", "Scene", "Held", "Dish", "Parcel"),
    *("Guest", "Crowd", "Contestant", "Sparingly", "WordTask", "WordStream", "Painting", "PassJob", "Meters"),
    *("turns_away", "stand_for", "put_account", "untold", "shrink_s", "wait_ms", "forced_first", "forced_last"),
    *(r"demand_\w+", r"_demand_\w+"),
)
RETIRED_PHRASES = (
    *("desk", "newcomers?", "guests?", "whoever", "untold", "unless told", "turned away", "turns away"),
    *("contestants?", "entrants?", "of the house", "who is done", "who waits", "remarks?"),
    *(r"patience", r"lanes?", "crowd"),
)


def _files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return [
        path
        for path in paths
        if (path.suffix in SUFFIXES or path.name == "Makefile") and str(path) not in EXEMPT and (ROOT / path).is_file()
    ]


FILES = _files()


def _occurrences(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()}"
        for path in FILES
        if not path.name.endswith(("_pb2.py", "_pb2.pyi", "_pb2_grpc.py"))
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("word", RETIRED_IDENTIFIERS)
def test_tree_has_no_retired_identifier(word: str) -> None:
    assert _occurrences(re.compile(rf"(?<![\w-]){word}(?![\w-])")) == []


@pytest.mark.parametrize("phrase", RETIRED_PHRASES)
def test_tree_has_no_retired_phrase(phrase: str) -> None:
    assert _occurrences(re.compile(rf"(?i)\b{phrase}\b")) == []


def test_python_files_are_short() -> None:
    lengths = {str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {
        path: n for path, n in lengths.items() if path.endswith(".py") and n > MAX_LINES and "_pb2" not in path
    } == {}


def test_readme_fits_its_limit() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES
