"""What was measured of the models of the house, as kept in results.json and shown on their cards."""

from __future__ import annotations

import json
import re

from export.menu import HERE, Dish

RESULTS, CARDS = HERE / "results.json", HERE / "cards"
_TABLE = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- /measured -->)", re.DOTALL)
Numbers = dict[str, float]
Measured = dict[str, Numbers]
"""Numbers by precision."""


def results() -> dict[str, Measured]:
    found: dict[str, Measured] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return found


def note(name: str, found: Measured) -> None:
    """Keeps the numbers and puts them onto the card."""
    RESULTS.write_text(json.dumps({**results(), name: found}, indent=2) + "\n", encoding="utf-8")
    card = CARDS / f"{name}.md"
    card.write_text(_TABLE.sub(lambda _: table(found), card.read_text(encoding="utf-8")), encoding="utf-8")


def table(found: Measured) -> str:
    """A row for each number, a column for each precision."""
    rows = [f"| {name} | " + " | ".join(_shown(each[name]) for each in found.values()) + " |" for name in found["fp32"]]
    return "\n".join([f"| | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|", *rows]) + "\n"


def written(card: str) -> str:
    """The table that a card has."""
    found = _TABLE.search(card)
    assert found is not None
    return found.group()


def headline(dish: Dish) -> str:
    """The numbers that its bar is about, in a few words."""
    found = results().get(dish.name)
    if found is None:
        return dish.reached or "not measured yet"
    return "; ".join(
        f"{name} {_shown(found['fp32'][name])}" + (f" (int8 {_shown(found['int8'][name])})" if "int8" in found else "")
        for name in dish.numbers
    )


def _shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value <= 1 else f"{value:.2f}"
