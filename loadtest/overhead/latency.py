"""Latency of a trivial model behind the service, compared with a plain grpc.aio server with the same servicer."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwaiter.v1.classification_pb2 import Input
from loadtest.overhead.async_callers import CallStats, call_for_seconds
from loadtest.overhead.request_senders import classify_sender
from loadtest.random_models import RandomModel
from loadtest.service_process import running_service

_SECONDS = 3.0
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians over the rounds."""

    server: str
    callers: int
    calls_per_second: float
    p50_ms: float
    p99_ms: float


def measure(scratch: Path, rounds: int, report_progress: Callable[[str], None]) -> list[Latency]:
    return asyncio.run(_measure((TRIVIAL.package / "1/fp32").resolve(), scratch, rounds, report_progress))


async def _measure(trivial: Path, scratch: Path, rounds: int, report_progress: Callable[[str], None]) -> list[Latency]:
    measured: dict[tuple[str, int], list[CallStats]] = {}
    model = {"path": str(trivial), "resources": {"cpus": 1}}
    with _plain_server(trivial) as plain, running_service(scratch, {"trivial": model}) as service:
        servers = {"plain grpc.aio": plain, "headwaiter serve": service.grpc}
        for index in range(rounds + 1):  # the first is a warm-up
            for callers in (1, 16):
                for server, address in servers.items():
                    report_progress(f"round {index} of {rounds}: {server}, {callers} clients")
                    async with classify_sender(address, "trivial", [Input(text="word1 word2")]) as send:
                        calls = await call_for_seconds(send, callers, _SECONDS)
                    if index:
                        measured.setdefault((server, callers), []).append(calls)
    return [
        Latency(
            server,
            callers,
            statistics.median(stats.rate for stats in calls),
            1e3 * statistics.median(stats.quantile(0.5) for stats in calls),
            1e3 * statistics.median(stats.quantile(0.99) for stats in calls),
        )
        for (server, callers), calls in measured.items()
    ]


@contextmanager
def _plain_server(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "loadtest.overhead.plain_grpc_server", str(folder), "trivial", "1"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=_STOP_SECONDS)


def _tiny_bert(folder: Path) -> Any:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word1", "word2", "word3"]
    BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)}).save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=len(vocabulary), num_labels=2, **shape))


TRIVIAL = RandomModel("trivial", _tiny_bert)
