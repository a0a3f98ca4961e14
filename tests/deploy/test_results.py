"""What deploy/RESULTS.md says."""

from __future__ import annotations

from deploy import results


def test_the_page_shows_what_was_measured() -> None:
    assert results.PAGE.read_text(encoding="utf-8") == results.page()
