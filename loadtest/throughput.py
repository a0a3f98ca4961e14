"""What is served at saturation, beside the engine in process."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from loadtest.callers import Calls, call_each
from loadtest.senders import IMAGES, OPUS, SENTENCES, classifying, images, pictures, translating
from loadtest.sentences import sentences
from loadtest.served import serving
from loadtest.untrained import VIT

TRANSLATOR, CLASSIFIER = "opus-mt-zh-en", "vit-b16"


@dataclass(frozen=True, slots=True)
class Throughput:
    model: str
    in_process: float  # inputs per second
    served: float
    ratio: float  # of medians
    callers_cores: float  # that the load generator took from the same machine
    ratio_without_callers: float  # what the ratio would be, had those cores served


def measure(scratch: Path, rounds: int, tell: Callable[[str], None]) -> list[Throughput]:
    vit = VIT.package / "1/fp32"
    return [_measure(*each, scratch, rounds, tell) for each in ((TRANSLATOR, "int8", OPUS), (CLASSIFIER, "fp32", vit))]


def _measure(
    name: str, precision: str, folder: Path, scratch: Path, rounds: int, tell: Callable[[str], None]
) -> Throughput:
    cores = os.cpu_count() or 1
    model = {"path": str(folder.resolve()), "resources": {"cpus": cores}, "limits": {"wait_ms": 600_000}}
    alone, served = [], []
    with (
        ProcessPoolExecutor(1, get_context("spawn"), _open, (str(folder), cores)) as process,
        serving(scratch, {name: model}) as service,
    ):
        for index in range(rounds + 1):  # the first is not counted
            tell(f"round {index} of {rounds}: {name}")
            own = process.submit(_run, name).result()
            calls = asyncio.run(saturate(service.grpc, name))
            if index:
                alone.append(own)
                served.append(calls)
    in_process = statistics.median(alone)
    rate = statistics.median(calls.rate for calls in served)
    taken = statistics.median(calls.own_cores for calls in served)
    ratio = rate / in_process
    return Throughput(f"{name} {precision}", in_process, rate, ratio, taken, ratio * cores / (cores - taken))


async def saturate(address: str, name: str, callers: int = 128) -> Calls:
    """More callers than rows: there is always one waiting."""
    if name == TRANSLATOR:
        async with translating(address, name) as send:
            return await call_each(send, callers, SENTENCES)
    async with classifying(address, name, images()) as send:
        return await call_each(send, 16, IMAGES)


_model: Any = None


def _open(folder: str, threads: int) -> None:
    from service import open_model

    global _model  # one per process, for as long as it lives
    _model = open_model(folder, threads=threads)


def _run(name: str) -> float:
    begun = time.perf_counter()
    count = len(_model.translate(sentences(SENTENCES)) if name == TRANSLATOR else _model.classify(image=pictures()))
    return count / (time.perf_counter() - begun)
