"""What was seen while a scenario was played."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.scenarios.page import Agreement, Seen
from loadtest.scenarios.plan import Done
from loadtest.traffic.samples import Sample


@dataclass(slots=True)
class Record:
    """All that was seen."""

    samples: list[Sample] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)  # one for each code that was not OK
    seen: list[Seen] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    agreement: list[Agreement] = field(default_factory=list)
    idle_rows: float = 0.0  # in use after all was over; none should be
    locust_requests: int = 0
    locust_failures: int = 0
