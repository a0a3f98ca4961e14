from __future__ import annotations

from deploy.config_reference import PAGE, config_table
from headwaiter_export.generated_sections import read_section


def test_config_table_in_docs_is_up_to_date() -> None:
    assert read_section("keys", PAGE) == config_table(), "run `python -m deploy.config_reference`"


def test_config_table_describes_every_key() -> None:
    rows = [line.split("|")[1:-1] for line in config_table().splitlines()[2:]]
    assert len(rows) > 20
    assert all(cell.strip() for row in rows for cell in row)
    assert all(description.strip().endswith(".") for *_, description in rows)
