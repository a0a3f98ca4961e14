"""Fuzz: mutated, random and valid requests over gRPC and HTTP, with random deadlines and cancellation."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from multiprocessing.connection import Connection, wait

from loadtest.abuse.fuzz.worker import EXPECTED_CODES, Progress, WorkerArgs, run_worker
from loadtest.abuse.scenario import SharedRun, SharedScenario

_WORKERS = 2
_REPORT_SECONDS = 10.0
_STALLED_SECONDS = 180.0
_SERVER_FAULTS = ("INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS")


def run(abuse: SharedRun) -> None:
    options, service = abuse.options, abuse.target.service
    faults = _server_faults(abuse)
    started = time.monotonic()
    progress = _send_requests(abuse, service.grpc, service.http)
    seconds = time.monotonic() - started
    codes: Counter[str] = Counter()
    for (_, code), count in progress.codes.items():
        codes[code] += count
    by_transport = Counter[str]()
    for (transport, _), count in progress.codes.items():
        by_transport[transport] += count
    sent = f"{codes.total():,} ({by_transport['grpc']:,} gRPC, {by_transport['http']:,} HTTP)"
    rate = f"{codes.total() / seconds:,.0f} per second"
    abuse.add(
        f"requests, seed {options.seed}", f"{sent}, {rate}", f"{options.requests:,}", is_met=_is_complete(abuse, codes)
    )
    abuse.add(
        "answers", ", ".join(f"{code} {count:,}" for code, count in codes.most_common() if code in EXPECTED_CODES)
    )
    unexpected = {code: count for code, count in codes.items() if code not in EXPECTED_CODES}
    abuse.add(
        "answers with INTERNAL, 500, UNKNOWN, UNAVAILABLE, or none at all",
        ", ".join(f"{code} {count:,}" for code, count in unexpected.items()) or "0",
        "0",
        is_met=not unexpected,
    )
    for line in progress.unexpected[:20]:
        abuse.report.print_line(f"  {line}")
    new_faults = _server_faults(abuse) - faults
    abuse.add("the same as counted by the service", f"{new_faults:,}", "0", is_met=new_faults == 0)


def _is_complete(abuse: SharedRun, codes: Counter[str]) -> bool:
    return codes.total() == abuse.options.requests


def _server_faults(abuse: SharedRun) -> int:
    counted = abuse.target.requests_by_code()
    return sum(counted[code] for code in _SERVER_FAULTS)


def _send_requests(abuse: SharedRun, grpc_address: str, url: str) -> Progress:
    """Send all requests from several processes and print the progress."""
    context, options = multiprocessing.get_context("spawn"), abuse.options
    last = options.first_request + options.requests
    latest: dict[Connection, Progress] = {}
    processes = []
    for index in range(_WORKERS):
        parent, child = context.Pipe()
        args = WorkerArgs(grpc_address, url, options.seed, range(options.first_request + index, last, _WORKERS))
        process = context.Process(target=run_worker, args=(args, child), daemon=True)
        process.start()
        child.close()
        processes.append(process)
        latest[parent] = Progress()
    _receive(abuse, latest)
    for process in processes:
        process.join(10)
        if process.is_alive():
            process.kill()
    total = Progress()
    for progress in latest.values():
        total.codes += progress.codes
        total.unexpected += progress.unexpected
    return total


def _receive(abuse: SharedRun, latest: dict[Connection, Progress]) -> None:
    """Update the latest progress of each worker until all have ended, or none has reported for a long time."""
    open_connections, started, printed_at = set(latest), time.monotonic(), time.monotonic()
    while open_connections:
        ready = wait(open_connections, _STALLED_SECONDS)
        if not ready:
            return
        for connection in ready:
            assert isinstance(connection, Connection)
            try:
                progress = connection.recv()
            except EOFError:
                progress = None
            if progress is None:
                open_connections.discard(connection)
            else:
                latest[connection] = progress
        if time.monotonic() > printed_at + _REPORT_SECONDS:
            printed_at = time.monotonic()
            sent = sum(progress.codes.total() for progress in latest.values())
            rate = sent / (printed_at - started)
            abuse.report.print_line(f"fuzz: {sent:,} of {abuse.options.requests:,} requests, {rate:,.0f} per second")


SCENARIO = SharedScenario(
    "fuzz", "mutated, random and valid requests over gRPC and HTTP, cancelled at random points", run
)
