"""Poison beside good: legal requests that end at the limits of a decoder must not fail the sequences beside them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

from headwaiter.client import NO_RETRIES, Client, HeadwaiterError
from headwaiter.client.results import Description
from loadtest.abuse.scenario import SharedRun, SharedScenario
from loadtest.traffic.sample_inputs import sample_photos

_PROMPT = "a sunflower to the left of three carrots a sunflower"
"""With 4 beams and 11 new tokens, emoji-captioner once ran past its table of positions."""
_BEAMS, _NEW_TOKENS = (4, 1, 2, 3), (11, 1, 2, 5, 16, 24, 32, 64)
_CALLERS = 3
_ALLOWED = {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
_IMAGE_SIZE = (96, 96)


def run(abuse: SharedRun) -> None:
    model = abuse.target.model("captioning") or abuse.target.model("generation")
    if model is None:
        abuse.add("poison requests", "no captioner or generator is served", "one", is_met=False)
        return
    description = abuse.target.descriptions[model]
    end = time.monotonic() + abuse.options.scaled(45, 8)
    codes: Counter[str] = Counter()
    callers = [
        threading.Thread(target=_send, args=(abuse.target.service.grpc, description, start, end, codes))
        for start in range(_CALLERS)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    abuse.add(f"poison requests to {model}", ", ".join(f"{code} {count:,}" for code, count in codes.most_common()))
    bad = {code: count for code, count in codes.items() if code not in _ALLOWED}
    abuse.add("poison requests that failed inside of the service", str(sum(bad.values())), "0", is_met=not bad)


def _send(address: str, description: Description, start: int, end: float, codes: Counter[str]) -> None:
    image = sample_photos(_IMAGE_SIZE)[start].data
    with Client(address, timeout=60, retries=NO_RETRIES) as client:
        for prompt, beams, tokens in _options(description, start):
            if time.monotonic() > end:
                return
            options: Any = {"num_beams": beams, "max_new_tokens": tokens}
            try:
                if description.task == "captioning":
                    client.caption(description.name, image, prompt=prompt, **options)
                else:
                    client.generate(description.name, prompt, **options)
            except HeadwaiterError as error:
                codes[error.code] += 1
            else:
                codes["OK"] += 1


def _options(description: Description, start: int) -> Iterator[tuple[str, int, int]]:
    """Prompts of all lengths with few and many new tokens, endlessly; the known poison request comes most often."""
    words = _PROMPT.split()
    limits = description.limits
    combinations = list(product(range(len(words), 0, -1), _BEAMS, _NEW_TOKENS))
    while True:
        for length, beams, tokens in combinations[start:]:
            yield _PROMPT, 4, min(11, limits["new_tokens"])
            yield " ".join(words[:length]), min(beams, limits["num_beams"]), min(tokens, limits["new_tokens"])


SCENARIO = SharedScenario("poison", "requests that end at a decoder's limits, beside good ones", run)
