"""What is wrong with an input, said to whoever sent it."""

from __future__ import annotations

from functools import partial
from typing import Any


class InputError(ValueError):
    """The request is at fault; one sentence says where and what would be right.

    >>> raise InputError("text[2] has 61,000 characters; the limit is 20,000", field="text[2]", limit=20_000)
    """

    def __init__(self, sentence: str, *, field: str, limit: float | None = None) -> None:
        super().__init__(sentence)
        self.field = field
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross processes; without this they would arrive without their field."""
        return partial(InputError, field=self.field, limit=self.limit), self.args


def demand_characters(text: str, field: str) -> None:
    """JSON can spell half a character, and no tokenizer takes one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        sentence = f"{field} has half a character (a lone surrogate) at position {error.start:,}"
        raise InputError(sentence, field=field) from None


def demand_length(count: int, limit: int, field: str, unit: str = "tokens") -> None:
    if count > limit:
        raise InputError(f"{field} has {count:,} {unit}; the limit is {limit:,}", field=field, limit=limit)


def demand_share(value: float | None, field: str) -> None:
    if value is not None and not 0 <= value <= 1:
        raise InputError(f"{field} is {value}; it must be from 0 to 1", field=field, limit=0 if value < 0 else 1)


def demand_seed(seed: int | None) -> None:
    if seed is not None and seed < 0:
        raise InputError(f"seed is {seed}; it must be at least 0", field="seed", limit=0)


def demand_positive(value: int | None, field: str) -> None:
    if value is not None and value < 1:
        raise InputError(f"{field} is {value}; it must be at least 1", field=field, limit=1)
