"""`python -m export.zoo.listing`: writes the README's table of systems anew, from the registry."""

from __future__ import annotations

import re
from pathlib import Path

from export.zoo.registry import GROUPS, systems

README = Path(__file__).parents[2] / "README.md"
_TABLE = re.compile(r"(?<=<!-- zoo -->\n).*?(?=<!-- /zoo -->)", re.DOTALL)


def table() -> str:
    lines = ["| system | served as | learns from | paper |", "|---|---|---|---|"]
    for group in GROUPS:
        members = [each for each in systems().values() if each.group == group]
        if members:
            lines.append(f"| *{group}* | | | |")
        lines += [f"| `{each.name}` | {each.task} | {each.recipe.data.name} | {each.paper} |" for each in members]
    return "\n".join(lines) + "\n"


def shown(readme: str) -> str:
    """The table that a README has."""
    found = _TABLE.search(readme)
    assert found is not None
    return found.group()


if __name__ == "__main__":
    README.write_text(_TABLE.sub(lambda _: table(), README.read_text(encoding="utf-8")), encoding="utf-8")
