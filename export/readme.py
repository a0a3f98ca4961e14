"""Parts of the README that programs write, each between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def part(name: str) -> str:
    found = _between(name).search(README.read_text(encoding="utf-8"))
    assert found is not None, f"README has no <!-- {name} -->"
    return found.group()


def renew(name: str, text: str) -> None:
    README.write_text(_between(name).sub(lambda _: text, README.read_text(encoding="utf-8")), encoding="utf-8")


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
