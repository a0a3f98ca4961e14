"""`python -m export.menu.listing`: writes the README's table of the menu anew, from what was measured."""

from __future__ import annotations

from export.menu import menu
from export.menu.results import headline
from export.readme import renew


def table() -> str:
    lines = ["| model | task | licence | must reach | reaches |", "|---|---|---|---|---|"]
    for dish in menu().values():
        card = f"[`{dish.name}`](export/menu/cards/{dish.name}.md)"
        lines.append(f"| {card} | {dish.task} | {dish.license} | {dish.bar} | {headline(dish)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    renew("menu", table())
