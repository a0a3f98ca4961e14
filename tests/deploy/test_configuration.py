from __future__ import annotations

from deploy import configuration
from export import readme


def test_the_table_of_the_readme() -> None:
    assert readme.part("keys") == configuration.keys(), "`python -m deploy.configuration` writes it anew"


def test_everything_is_explained() -> None:
    rows = [line.split("|")[1:-1] for line in configuration.keys().splitlines()[2:]]
    assert len(rows) > 20
    assert all(cell.strip() for row in rows for cell in row)
