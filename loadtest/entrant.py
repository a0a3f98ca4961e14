"""A contestant's own side: a process that is told what to do in lines of JSON, and answers in such lines."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

Task = dict[str, Any]
Way = TypeVar("Way")


class Entrant(Protocol):
    def prepare(self, task: Task) -> str:
        """Gets ready for tasks like this one, in the way that is fastest here; says which way that is."""

    def play(self, task: Task) -> Any:
        """What is timed."""


def compete(entrants: dict[str, Callable[[int], Entrant]], packages: Mapping[str, tuple[str, ...]]) -> None:
    """`python -m MODULE NAME THREADS`; `packages` are what each engine's versions are told of."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not a reply
    name, threads = sys.argv[1], int(sys.argv[2])
    entrant = entrants[name](threads)
    _reply(replies, {each: importlib.metadata.version(each) for each in packages[name.split()[0]]})
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            _reply(replies, entrant.prepare(request["prepare"]))
            continue
        begun = time.perf_counter()
        answer = entrant.play(request["play"])
        _reply(replies, {"seconds": time.perf_counter() - begun, "answer": answer})


def fastest(ways: Sequence[Way], run: Callable[[Way], object]) -> Way:
    """Each is tried once, the two best once more: one disturbance then does not decide."""
    if len(ways) == 1:
        return ways[0]
    seconds = {way: _seconds(run, way) for way in ways}
    for way in sorted(seconds, key=lambda way: seconds[way])[:2]:
        seconds[way] = min(seconds[way], _seconds(run, way))
    return min(seconds, key=lambda way: seconds[way])


def _seconds(run: Callable[[Way], object], way: Way) -> float:
    begun = time.perf_counter()
    run(way)
    return time.perf_counter() - begun


def _reply(replies: Any, content: Any) -> None:
    replies.write(json.dumps(content, default=_plain) + "\n")
    replies.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value)} has no place in a reply")
