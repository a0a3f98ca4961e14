"""Generated tables and sections of Markdown files; a section is delimited by `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def read_section(name: str, file: Path = README) -> str:
    match = _section_pattern(name).search(file.read_text(encoding="utf-8"))
    assert match is not None, f"{file.name} has no section <!-- {name} -->"
    return match.group()


def write_section(name: str, text: str, file: Path = README) -> None:
    """Replace the section's text; raise AssertionError if the file does not have the section."""
    content, count = _section_pattern(name).subn(lambda _: text, file.read_text(encoding="utf-8"))
    assert count, f"{file.name} has no section <!-- {name} -->"
    file.write_text(content, encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without a trailing newline."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _section_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
