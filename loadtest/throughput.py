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

from loadtest.callers import Calls, Send, call_each
from loadtest.senders import IMAGES, OPUS, SENTENCES, classifying, images, pictures, translating
from loadtest.sentences import sentences
from loadtest.served import serving
from loadtest.untrained import VIT
from service.tasks.decoding import Decoding

TRANSLATOR, CLASSIFIER = "opus-mt-zh-en", "vit-b16"


@dataclass(frozen=True, slots=True)
class Throughput:
    model: str
    in_process: float  # inputs per second, as many callers as are served
    at_once: float  # in process, all inputs known from the start: the longest come first
    served: float
    ratio: float  # of medians, served beside in process
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
    alone, at_once, served = [], [], []
    with (
        ProcessPoolExecutor(1, get_context("spawn"), _open, (str(folder), cores)) as process,
        serving(scratch, {name: model}) as service,
    ):
        for index in range(rounds + 1):  # the first is not counted
            tell(f"round {index} of {rounds}: {name}")
            own = process.submit(_saturate, name).result()
            known = process.submit(_run, name).result()
            calls = asyncio.run(saturate(service.grpc, name))
            if index:
                alone.append(own)
                at_once.append(known)
                served.append(calls)
    in_process = statistics.median(alone)
    rate = statistics.median(calls.rate for calls in served)
    taken = statistics.median(calls.own_cores for calls in served)
    ratio = rate / in_process
    whole = ratio * cores / (cores - taken)
    return Throughput(f"{name} {precision}", in_process, statistics.median(at_once), rate, ratio, taken, whole)


async def saturate(address: str, name: str, callers: int | None = None) -> Calls:
    async with translating(address, name) if name == TRANSLATOR else classifying(address, name, images()) as send:
        return await _saturated(send, name, callers)


async def _saturated(send: Send, name: str, callers: int | None = None) -> Calls:
    """More callers than rows: there is always one waiting."""
    usual, count = (128, SENTENCES) if name == TRANSLATOR else (16, IMAGES)
    return await call_each(send, callers or usual, count)


_model: Any = None


def _open(folder: str, threads: int) -> None:
    from service import open_model

    global _model  # one per process, for as long as it lives
    _model = open_model(folder, threads=threads)


def _saturate(name: str) -> float:
    """Asked as the service is, in the same order."""
    if name == TRANSLATOR:
        texts, how = sentences(SENTENCES), Decoding()

        async def send(number: int) -> object:
            return await _model.task.translate(texts[number], how)
    else:
        data = pictures()

        async def send(number: int) -> object:
            return await _model.submit_image(data[number])

    return asyncio.run(_saturated(send, name)).rate


def _run(name: str) -> float:
    begun = time.perf_counter()
    count = len(_model.translate(sentences(SENTENCES)) if name == TRANSLATOR else _model.classify(image=pictures()))
    return count / (time.perf_counter() - begun)
