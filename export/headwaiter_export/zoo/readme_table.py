"""Regenerate the table of architectures in docs/zoo.md: `python -m headwaiter_export.zoo.readme_table`."""

from __future__ import annotations

from headwaiter_export.generated_sections import README, write_section
from headwaiter_export.zoo.registry import GROUPS, architectures

PAGE = README.parent / "docs/zoo.md"


def table() -> str:
    lines = ["| architecture | task | dataset | paper |", "|---|---|---|---|"]
    for group in GROUPS:
        members = [member for member in architectures().values() if member.group == group]
        if members:
            lines.append(f"| *{group}* | | | |")
        lines += [
            f"| `{member.name}` | {member.task} | {member.recipe.data.name} | {member.paper} |" for member in members
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_section("zoo", table(), PAGE)
