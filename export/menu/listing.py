"""`python -m export.menu.listing`: writes the README's table of the menu anew, from what was measured."""

from __future__ import annotations

import re
from pathlib import Path

from export.menu import menu
from export.menu.results import headline

README = Path(__file__).parents[2] / "README.md"
_TABLE = re.compile(r"(?<=<!-- menu -->\n).*?(?=<!-- /menu -->)", re.DOTALL)


def table() -> str:
    lines = ["| model | task | licence | must reach | reaches |", "|---|---|---|---|---|"]
    for dish in menu().values():
        card = f"[`{dish.name}`](export/menu/cards/{dish.name}.md)"
        lines.append(f"| {card} | {dish.task} | {dish.license} | {dish.bar} | {headline(dish)} |")
    return "\n".join(lines) + "\n"


def shown(readme: str) -> str:
    """The table that a README has."""
    found = _TABLE.search(readme)
    assert found is not None
    return found.group()


if __name__ == "__main__":
    README.write_text(_TABLE.sub(lambda _: table(), README.read_text(encoding="utf-8")), encoding="utf-8")
