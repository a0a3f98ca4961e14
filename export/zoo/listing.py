"""`python -m export.zoo.listing`: writes the README's table of systems anew, from the registry."""

from __future__ import annotations

from export.readme import renew
from export.zoo.registry import GROUPS, systems


def table() -> str:
    lines = ["| system | served as | learns from | paper |", "|---|---|---|---|"]
    for group in GROUPS:
        members = [each for each in systems().values() if each.group == group]
        if members:
            lines.append(f"| *{group}* | | | |")
        lines += [f"| `{each.name}` | {each.task} | {each.recipe.data.name} | {each.paper} |" for each in members]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    renew("zoo", table())
