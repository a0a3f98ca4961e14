"""Dates as people write them, to be written as machines do: `friday 5 june 2 0 2 6` is `2 0 2 6 - 0 6 - 0 5`."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np

from export.zoo.data.rewriting import Rewriting

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_FIRST, _COUNT = date(1900, 1, 1), 73_000  # two centuries
_SIGNS = (*"0123456789", "-", "/", ".", ",")


class Dates(Rewriting):
    """Months and days of the week are words, all else is sign by sign."""

    name = "dates"
    chance = 1 / _COUNT

    def __init__(self) -> None:
        super().__init__([*_SIGNS, *_MONTHS, *_DAYS], length=12)

    def example(self, rng: np.random.Generator) -> tuple[list[str], list[str]]:
        day = _FIRST + timedelta(int(rng.integers(_COUNT)))
        return forms(day)[int(rng.integers(len(forms(day))))], list(day.isoformat())


def forms(day: date) -> list[list[str]]:
    """The ways in which people write it."""
    month, weekday, number, year = _MONTHS[day.month - 1], _DAYS[day.weekday()], str(day.day), str(day.year)
    return [
        [*number, month, *year],
        [weekday, *number, month, *year],
        [month, *number, ",", *year],
        [*f"{day.day}.{day.month}.{day.year}"],
        [*f"{day.day:02}/{day.month:02}/{day.year}"],
    ]
