from __future__ import annotations

from deploy import results


def test_results_report_is_up_to_date() -> None:
    assert results.REPORT.read_text(encoding="utf-8") == results.report(), "run `python -m deploy.results`"
