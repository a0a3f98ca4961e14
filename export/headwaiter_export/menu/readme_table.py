"""Regenerate the table of built-in models in docs/menu.md: `python -m headwaiter_export.menu.readme_table`."""

from __future__ import annotations

from headwaiter_export.generated_sections import README, write_section
from headwaiter_export.menu import menu
from headwaiter_export.menu.results import target_summary

PAGE = README.parent / "docs/menu.md"


def table() -> str:
    lines = ["| model | task | licence | target | measured |", "|---|---|---|---|---|"]
    for entry in menu().values():
        card = f"[`{entry.name}`](../export/headwaiter_export/menu/cards/{entry.name}.md)"
        lines.append(f"| {card} | {entry.task} | {entry.license} | {entry.target} | {target_summary(entry)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_section("menu", table(), PAGE)
