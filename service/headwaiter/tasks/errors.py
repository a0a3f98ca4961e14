"""`InputError`, raised for invalid requests, and the checks that tasks share."""

from __future__ import annotations

from collections.abc import Sized
from functools import partial
from typing import Any

MAX_INPUTS = 256  # of one request
_MAX_QUOTED_CHARS = 40


class InputError(ValueError):
    """A request is invalid: `field` is the path of the offending field, `limit` the limit it violates, if any.

    >>> raise InputError("text[2] has 61,000 characters; the limit is 20,000", field="text[2]", limit=20_000)
    """

    def __init__(self, message: str, *, field: str, limit: float | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        """Preserve `field` and `limit` when the error is pickled."""
        return partial(InputError, field=self.field, limit=self.limit), self.args


def shorten(text: str, limit: int = _MAX_QUOTED_CHARS) -> str:
    """Text of a client as errors and logs quote it: at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def check_encodable(text: str, field: str) -> None:
    """Reject lone surrogates, which JSON can represent but tokenizers do not accept."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{field} has a lone surrogate at position {error.start:,}; it must be valid Unicode"
        raise InputError(message, field=field) from None


def check_inputs(inputs: Sized, field: str) -> None:
    """Check the number of inputs of a request, before anything is built for them."""
    count = len(inputs)
    if not count:
        raise InputError(f"{field} is empty; at least one input is required", field=field, limit=1)
    if count > MAX_INPUTS:
        message = f"{field} has {count:,} inputs; the limit is {MAX_INPUTS:,}"
        raise InputError(message, field=field, limit=MAX_INPUTS)


def check_length(count: int, limit: int, field: str, unit: str = "tokens") -> None:
    if count > limit:
        raise InputError(f"{field} has {count:,} {unit}; the limit is {limit:,}", field=field, limit=limit)


def check_fraction(value: float | None, field: str) -> None:
    if value is not None and not 0 <= value <= 1:
        raise InputError(f"{field} is {value}; it must be from 0 to 1", field=field, limit=0 if value < 0 else 1)


def check_seed(seed: int | None) -> None:
    if seed is not None and seed < 0:
        raise InputError(f"seed is {seed}; it must be at least 0", field="seed", limit=0)


def check_positive(value: int | None, field: str) -> None:
    if value is not None and value < 1:
        raise InputError(f"{field} is {value}; it must be at least 1", field=field, limit=1)
