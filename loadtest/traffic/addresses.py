"""Where the service is and who is asked for what: the same options for locust and for scenarios."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

KEY = "HEADWAITER_KEY"
WAYS = ("grpc", "http")


def add_options(add: Callable[..., Any]) -> None:
    add("--grpc", default="localhost:9000", metavar="HOST:PORT", help="where the service speaks gRPC")
    add("--http", default="http://localhost:8000", metavar="URL", help="where it speaks HTTP")
    add("--models", type=weights, default={}, metavar="NAME=WEIGHT,…", help="all that are served, alike, unless told")
    add("--seed", type=int, default=0, help="the same seed draws the same inputs")


def key() -> str | None:
    """Not an option: the list of processes shows those."""
    return os.environ.get(KEY)


def weights(text: str) -> dict[str, float]:
    found = {}
    for part in filter(None, text.split(",")):
        name, _, weight = part.partition("=")
        try:
            found[name] = float(weight or 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=WEIGHT, such as opus-mt-zh-en=2") from None
    return found


def ways(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(WAYS):
        raise argparse.ArgumentTypeError(f"{text!r} is not among {', '.join(WAYS)}, or both: grpc,http")
    return chosen


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
