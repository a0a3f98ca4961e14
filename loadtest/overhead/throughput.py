"""Throughput of the service at saturation, compared with the engine in process."""

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

from headwaiter.tasks.decoding import DecodingOptions
from loadtest.overhead.async_callers import CallStats, Send, call_n_times
from loadtest.overhead.request_senders import (
    IMAGES,
    OPUS,
    SENTENCES,
    classify_sender,
    images,
    sample_jpegs,
    translate_sender,
)
from loadtest.random_models import VIT
from loadtest.sentences import sentences
from loadtest.service_process import running_service

TRANSLATOR, CLASSIFIER = "opus-mt-zh-en", "vit-b16"


@dataclass(frozen=True, slots=True)
class Throughput:
    model: str
    in_process: float  # inputs per second, with the same concurrency as the service
    in_process_offline: float  # in process, all inputs known upfront, longest first
    served: float
    ratio: float  # served to in process, of medians
    client_cores: float  # used by the load generator on the same machine
    ratio_excluding_clients: float  # the ratio if those cores had been free to serve


def measure(scratch: Path, rounds: int, report_progress: Callable[[str], None]) -> list[Throughput]:
    vit = VIT.package / "1/fp32"
    return [
        _measure(*model, scratch, rounds, report_progress)
        for model in ((TRANSLATOR, "int8", OPUS), (CLASSIFIER, "fp32", vit))
    ]


def _measure(
    name: str, precision: str, folder: Path, scratch: Path, rounds: int, report_progress: Callable[[str], None]
) -> Throughput:
    cores = os.cpu_count() or 1
    model = {"path": str(folder.resolve()), "resources": {"cpus": cores}, "limits": {"max_queue_wait_ms": 600_000}}
    in_process_rates, offline_rates, served = [], [], []
    with (
        ProcessPoolExecutor(1, get_context("spawn"), _open, (str(folder), cores)) as process,
        running_service(scratch, {name: model}) as service,
    ):
        for index in range(rounds + 1):  # the first is a warm-up
            report_progress(f"round {index} of {rounds}: {name}")
            concurrent = process.submit(_saturate, name).result()
            offline = process.submit(_run, name).result()
            calls = asyncio.run(saturate(service.grpc, name))
            if index:
                in_process_rates.append(concurrent)
                offline_rates.append(offline)
                served.append(calls)
    in_process = statistics.median(in_process_rates)
    rate = statistics.median(calls.rate for calls in served)
    client_cores = statistics.median(calls.client_cores for calls in served)
    ratio = rate / in_process
    ratio_excluding_clients = ratio * cores / (cores - client_cores)
    return Throughput(
        f"{name} {precision}",
        in_process,
        statistics.median(offline_rates),
        rate,
        ratio,
        client_cores,
        ratio_excluding_clients,
    )


async def saturate(address: str, name: str, callers: int | None = None) -> CallStats:
    async with (
        translate_sender(address, name) if name == TRANSLATOR else classify_sender(address, name, images()) as send
    ):
        return await _call_until_saturated(send, name, callers)


async def _call_until_saturated(send: Send, name: str, callers: int | None = None) -> CallStats:
    """Use more callers than slots, so that the queue is never empty."""
    default_callers, count = (128, SENTENCES) if name == TRANSLATOR else (16, IMAGES)
    return await call_n_times(send, callers or default_callers, count)


_model: Any = None


def _open(folder: str, threads: int) -> None:
    from headwaiter import open_model

    global _model  # one per worker process
    _model = open_model(folder, threads=threads)


def _saturate(name: str) -> float:
    """Return inputs per second with the same concurrency and order as the service."""
    if name == TRANSLATOR:
        texts, decoding = sentences(SENTENCES), DecodingOptions()

        async def send(number: int) -> object:
            return await _model.task.translate(texts[number], decoding)
    else:
        data = sample_jpegs()

        async def send(number: int) -> object:
            return await _model.task.submit_image(data[number])

    return asyncio.run(_call_until_saturated(send, name)).rate


def _run(name: str) -> float:
    """Return inputs per second when all inputs are submitted at once."""
    started = time.perf_counter()
    count = len(_model.translate(sentences(SENTENCES)) if name == TRANSLATOR else _model.classify(image=sample_jpegs()))
    return count / (time.perf_counter() - started)
