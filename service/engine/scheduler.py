"""Who joins at the next step."""

from __future__ import annotations

from collections import deque

from service.engine.sequence import DecodeJob
from service.package import padded_length

_PLACES_PER_TURN = 512


class Scheduler:
    """First come, first served, with two limits.

    A request joins as soon as it is first in line and its rows are free (k rows for a beam of k): nobody overtakes, so
    a request waits at most until those before it have left. While others are being decoded, newcomers of at most
    `places_per_turn` padded source tokens are encoded between two steps (one newcomer always may), so that running
    rows are held up for a bounded time at each step. When nothing runs, there is nobody to hold up: all rows may fill.

    Lanes share one line, so the order is the same over all of them; a lane takes no more than its share of the rows
    (`Decoder`), and one that is idle takes whoever comes at once.
    """

    def __init__(self, places_per_turn: int = _PLACES_PER_TURN) -> None:
        self.places_per_turn = places_per_turn

    def choose(self, waiting: deque[DecodeJob], free: int, running: int) -> list[DecodeJob]:
        """Takes those who join now out of the line."""
        chosen: list[DecodeJob] = []
        places = 0
        while waiting and waiting[0].choosing.beams <= free:
            cost = padded_length(max(waiting[0].source_length, len(waiting[0].prompt)))
            if chosen and running and places + cost > self.places_per_turn:
                break
            places += cost
            free -= waiting[0].choosing.beams
            chosen.append(waiting.popleft())
        return chosen
