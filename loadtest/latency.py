"""A trivial model behind the whole way, beside a plain grpc.aio server with the same servicer."""

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
from loadtest.callers import Calls, call_for
from loadtest.senders import classifying
from loadtest.served import serving
from loadtest.untrained import Untrained

_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians over the rounds."""

    way: str
    callers: int
    calls_per_second: float
    p50_ms: float
    p99_ms: float


def measure(scratch: Path, rounds: int, tell: Callable[[str], None]) -> list[Latency]:
    return asyncio.run(_measure((TRIVIAL.package / "1/fp32").resolve(), scratch, rounds, tell))


async def _measure(trivial: Path, scratch: Path, rounds: int, tell: Callable[[str], None]) -> list[Latency]:
    found: dict[tuple[str, int], list[Calls]] = {}
    model = {"path": str(trivial), "resources": {"cpus": 1}}
    with _plain(trivial) as plain, serving(scratch, {"trivial": model}) as service:
        ways = {"plain grpc.aio": plain, "headwaiter serve": service.grpc}
        for index in range(rounds + 1):  # the first is not counted
            for callers in (1, 16):
                for way, address in ways.items():
                    tell(f"round {index} of {rounds}: {way}, {callers} callers")
                    async with classifying(address, "trivial", [Input(text="word1 word2")]) as send:
                        calls = await call_for(send, callers, _SECONDS)
                    if index:
                        found.setdefault((way, callers), []).append(calls)
    return [
        Latency(
            way,
            callers,
            statistics.median(each.rate for each in calls),
            1e3 * statistics.median(each.quantile(0.5) for each in calls),
            1e3 * statistics.median(each.quantile(0.99) for each in calls),
        )
        for (way, callers), calls in found.items()
    ]


@contextmanager
def _plain(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "loadtest.plain", str(folder), "trivial", "1"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


def _tiny_bert(folder: Path) -> Any:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word1", "word2", "word3"]
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}).save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=len(words), num_labels=2, **shape))


TRIVIAL = Untrained("trivial", _tiny_bert)
