"""Findings of the abuse scenarios: what was measured, what is expected, and whether it is met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Row = list[str]
"""Scenario, what was measured, the figure, and the expectation: the columns of deploy/RESULTS.md."""


@dataclass(frozen=True, slots=True)
class Finding:
    scenario: str
    what: str
    measured: str
    expected: str = ""  # empty: recorded, not checked
    is_met: bool = True

    def row(self) -> Row:
        return [self.scenario, self.what, self.measured, self.expected + ("" if self.is_met else " (**not met**)")]

    def __str__(self) -> str:
        expectation = f"; expected: {self.expected}" if self.expected else ""
        return f"{self.scenario}: {self.what}: {self.measured}{expectation}{'' if self.is_met else '; NOT MET'}"


@dataclass
class Report:
    """Collects findings and prints each one when it is added."""

    print_line: Callable[[str], None]
    findings: list[Finding] = field(default_factory=list)

    def add(self, scenario: str, what: str, measured: str, expected: str = "", *, is_met: bool = True) -> None:
        self.findings.append(Finding(scenario, what, measured, expected, is_met))
        self.print_line(str(self.findings[-1]))

    def add_count(self, scenario: str, what: str, items: Sequence[object], expected: int = 0) -> None:
        """Record how many there are, which must be `expected`; the first ones are printed if there are more."""
        is_met = len(items) == expected
        self.add(scenario, what, f"{len(items):,}", f"{expected:,}", is_met=is_met)
        if not is_met:
            for item in items[:_PRINTED]:
                self.print_line(f"  {item}")

    @property
    def unmet(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_met]


_PRINTED = 10


def merge_rows(recorded: Sequence[Row], findings: Sequence[Finding], order: Sequence[str]) -> list[Row]:
    """Replace the recorded rows of the scenarios that ran; rows are in the order of the scenarios."""
    measured = {finding.scenario for finding in findings}
    kept = [list(row) for row in recorded if row[0] not in measured and row[0] in order]
    return sorted([*kept, *(finding.row() for finding in findings)], key=lambda row: order.index(row[0]))
