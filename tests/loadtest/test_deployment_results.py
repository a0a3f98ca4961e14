from __future__ import annotations

from loadtest import deployment_results


def test_results_report_is_up_to_date() -> None:
    assert deployment_results.REPORT.read_text(encoding="utf-8") == deployment_results.report(), (
        "run `python -m loadtest.deployment_results`"
    )
