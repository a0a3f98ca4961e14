"""Dates in natural notation, to be converted to ISO format: `friday 5 june 2 0 2 6` to `2 0 2 6 - 0 6 - 0 5`."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np

from headwaiter_export.zoo.data.rewriting import Rewriting

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
_CHARACTERS = (*"0123456789", "-", "/", ".", ",")


class Dates(Rewriting):
    """Month and weekday names are single tokens; everything else is one token per character."""

    name = "dates"
    chance_level = 1 / _COUNT

    def __init__(self) -> None:
        super().__init__([*_CHARACTERS, *_MONTHS, *_DAYS], length=12)

    def example(self, rng: np.random.Generator) -> tuple[list[str], list[str]]:
        day = _FIRST + timedelta(int(rng.integers(_COUNT)))
        return forms(day)[int(rng.integers(len(forms(day))))], list(day.isoformat())


def forms(day: date) -> list[list[str]]:
    """Natural notations of a date, as tokens."""
    month, weekday, day_of_month, year = _MONTHS[day.month - 1], _DAYS[day.weekday()], str(day.day), str(day.year)
    return [
        [*day_of_month, month, *year],
        [weekday, *day_of_month, month, *year],
        [month, *day_of_month, ",", *year],
        [*f"{day.day}.{day.month}.{day.year}"],
        [*f"{day.day:02}/{day.month:02}/{day.year}"],
    ]
