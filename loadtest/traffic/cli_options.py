"""Command-line options that locust and the scenarios share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

KEY = "HEADWAITER_KEY"
TRANSPORTS = ("grpc", "http")


def add_options(add: Callable[..., Any]) -> None:
    add("--grpc", default="localhost:9000", metavar="HOST:PORT", help="gRPC address of the service")
    add("--http", default="http://localhost:8000", metavar="URL", help="HTTP address of the service")
    add(
        "--models",
        type=weights,
        default={},
        metavar="NAME=WEIGHT,…",
        help="default: all served models with equal weights",
    )
    add("--seed", type=int, default=0, help="random seed of the inputs")


def api_key() -> str | None:
    """Return the API key from the environment; a command-line option would be visible in process listings."""
    return os.environ.get(KEY)


def weights(text: str) -> dict[str, float]:
    parsed = {}
    for part in filter(None, text.split(",")):
        name, _, weight = part.partition("=")
        try:
            parsed[name] = float(weight or 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=WEIGHT, such as opus-mt-zh-en=2") from None
    return parsed


def transports(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(TRANSPORTS):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(TRANSPORTS)}; use both as grpc,http")
    return names


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number greater than 0")
    return value


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer greater than 0")
    return int(text)
