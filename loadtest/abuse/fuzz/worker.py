"""A client process of the fuzz scenario: many requests at a time over both transports."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from loadtest.abuse.fuzz.requests import FuzzRequestGenerator
from loadtest.abuse.fuzz.senders import CLIENT_CANCELLED, STATUS_LOST, GrpcSender, HttpSender
from loadtest.traffic.request_generators import build_workload

EXPECTED_CODES = {
    *("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"),
    *("CANCELLED", CLIENT_CANCELLED, STATUS_LOST),
    *("HTTP 400", "HTTP 404", "HTTP 405", "HTTP 501"),  # from the proxy, which rejects what is not HTTP
}
_CONCURRENCY = 24
_REPORT_SECONDS = 1.0
_MAX_UNEXPECTED = 200  # kept; all are counted


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    grpc: str
    http: str
    seed: int
    numbers: range


@dataclass
class Progress:
    """What a worker has sent so far: by transport and code, and the first answers that are not expected."""

    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)

    def count(self, transport: str, code: str, request: object, message: str) -> None:
        self.codes[transport, code] += 1
        if code not in EXPECTED_CODES and len(self.unexpected) < _MAX_UNEXPECTED:
            self.unexpected.append(f"{request}: {code} {message}")


def run_worker(args: WorkerArgs, connection: Connection) -> None:
    """Send the requests of `args.numbers`; sends its progress once per second, and None at the end."""
    progress = Progress()
    asyncio.run(_send_all(args, progress, connection))
    connection.send(progress)
    connection.send(None)


async def _send_all(args: WorkerArgs, progress: Progress, connection: Connection) -> None:
    generator = FuzzRequestGenerator(build_workload(args.grpc, {}, seed=args.seed).generators, args.seed)
    numbers, reported_at = iter(args.numbers), time.monotonic()
    grpc_sender = GrpcSender(args.grpc)

    async def send_requests(numbers: Iterator[int]) -> None:
        nonlocal reported_at
        http_sender = HttpSender(args.http)
        for number in numbers:
            request = generator.request(number)
            sender = grpc_sender if request.transport == "grpc" else http_sender
            code, message = await sender.send(request)
            progress.count(request.transport, code, request, message)
            if time.monotonic() > reported_at + _REPORT_SECONDS:
                reported_at = time.monotonic()
                connection.send(progress)
        await http_sender.close()

    await asyncio.gather(*(send_requests(numbers) for _ in range(_CONCURRENCY)))
    await grpc_sender.close()
