"""Drain: a redeployment and SIGTERM end within their bound with watchers, idle episodes and slow readers attached."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter.client import NO_RETRIES, Client
from loadtest.abuse.good_callers import BASELINE, good_callers
from loadtest.abuse.http_connection import request_bytes
from loadtest.abuse.scenario import OwnRun, OwnScenario
from loadtest.abuse.target import Target, wait_until
from loadtest.service_process import STOP_SECONDS, ServiceProcess, running_service
from loadtest.traffic.sample_inputs import TEXTS, chinese_sentences

MAX_SECONDS = 75.0  # graceful_shutdown_timeout_s is 60
_WATCHERS, _EPISODES, _READERS, _CALLS = 8, 4, 8, 2
_REDEPLOY, _STOP = "redeployment", "SIGTERM"
_SENTENCES = 20
_READ_SECONDS, _ACCEPTED_SECONDS = 15.0, 0.3
_TIMEOUT_SECONDS = 120.0


def run(abuse: OwnRun) -> None:
    models = {name: dict(config) for name, config in abuse.models.items()}
    with running_service(abuse.folder, models) as service:
        target = Target(service)
        with good_callers(service.grpc) as callers, _attached(target):
            callers.measure(BASELINE, abuse.options.scaled(10, 3))
            callers.begin(_REDEPLOY)
            _redeploy(abuse, target, models)
            callers.stop()  # SIGTERM ends the service, so that new calls have nowhere to go
            log = callers.logs[_REDEPLOY]
            abuse.report.add_count(abuse.name, f"{_REDEPLOY}: failed of {len(log.seconds):,} calls", log.failed)
        with _attached(target):
            _stop(abuse, target)


def _redeploy(abuse: OwnRun, target: Target, models: dict[str, Any]) -> None:
    """Change a limit of every model, so that all replicas are replaced, while clients are attached to the old ones."""
    old = {pid for pids in target.replicas().values() for pid in pids}
    for config in models.values():
        config["limits"] = {**config.get("limits", {}), "text": 15_000}
    started = time.monotonic()
    target.service.change(models)
    is_met = wait_until(lambda: not old & {pid for pids in target.replicas().values() for pid in pids}, STOP_SECONDS)
    seconds = time.monotonic() - started
    attached = f"{_WATCHERS} watchers, {_EPISODES} idle episodes and {_READERS} slow readers"
    abuse.add(
        f"{_REDEPLOY} of all models with {attached}: the old replicas have ended after",
        f"{seconds:.0f} s",
        f"at most {2 * MAX_SECONDS:.0f} s",
        is_met=is_met and seconds <= 2 * MAX_SECONDS,
    )


def _stop(abuse: OwnRun, target: Target) -> None:
    """Send SIGTERM while accepted calls run; they must be answered."""
    failed: list[str] = []
    target.wait_until_idle(_READ_SECONDS)  # the episodes stay open; the streams are computed although nobody reads them
    calls = [threading.Thread(target=_long_call, args=(target, failed)) for _ in range(_CALLS)]
    for call in calls:
        call.start()
    time.sleep(_ACCEPTED_SECONDS)
    in_flight = sum(call.is_alive() for call in calls)
    started = time.monotonic()
    target.service.process.send_signal(signal.SIGTERM)
    try:
        status = str(target.service.process.wait(STOP_SECONDS))
    except subprocess.TimeoutExpired:
        status = "none"
    seconds = time.monotonic() - started
    for call in calls:
        call.join(_TIMEOUT_SECONDS)
    is_met = status == "0" and seconds <= MAX_SECONDS
    abuse.add(f"{_STOP}: ended after", f"{seconds:.0f} s, status {status}", f"{MAX_SECONDS:.0f} s, 0", is_met=is_met)
    abuse.report.add_count(abuse.name, f"{_STOP}: failed of {in_flight} accepted calls in flight", failed)


def _model(target: Target) -> str:
    return target.model("translation") or target.model("generation") or target.models[0]


def _long_call(target: Target, failed: list[str]) -> None:
    """A call of about a second, without retries."""
    try:
        with Client(target.service.grpc, timeout=_TIMEOUT_SECONDS, retries=NO_RETRIES) as client:
            if (translator := target.model("translation")) is not None:
                client.translate(translator, "".join(chinese_sentences()[:_SENTENCES]), num_beams=4)
            else:
                client.generate(_model(target), [TEXTS[0]] * _SENTENCES)
    except Exception as error:
        failed.append(repr(error))


@contextmanager
def _attached(target: Target) -> Iterator[None]:
    """Attach watchers of health, idle episodes and readers that never read, for the duration of the block."""
    service = target.service
    with ExitStack() as stack, grpc.insecure_channel(service.grpc) as channel:
        for index in range(_WATCHERS):
            name = target.models[index % len(target.models)]
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), metadata=[("application", name)]
            )
            next(watch)
            stack.callback(watch.cancel)
        if (policy := target.model("policy")) is not None:
            client = stack.enter_context(service.client(retries=NO_RETRIES))
            size = target.descriptions[policy].state_size or 1
            for _ in range(_EPISODES):
                episode = client.episode(policy, target_return=1.0)
                episode.step([0.0] * size)
        if (translator := target.model("translation")) is not None:
            for _ in range(_READERS):
                stack.callback(_silent_reader(service, translator).close)
        yield


def _silent_reader(service: ServiceProcess, model: str) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", urlsplit(service.http).port or 80))
    headers = (("content-type", "application/json"), ("accept", "text/event-stream"))
    body = '{"text": "' + "你好。" * 100 + '"}'
    connection.sendall(request_bytes("POST", f"/models/{model}/translate", headers, body.encode()))
    return connection


SCENARIO = OwnScenario("drain", "redeployment and SIGTERM with watchers, idle episodes and slow readers", run)
