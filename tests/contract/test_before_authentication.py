"""Nothing is read of a request without a key, the catalog takes small messages only, and slow clients are cut off."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from headwaiter.client import Client
from loadtest.service_process import ServiceProcess
from tests.contract.conftest import TIMEOUT_SECONDS

_MB = 1 << 20
_CALLS = {
    "/headwaiter.v1.Models/ListModels": "catalog",
    "/headwaiter.v1.Models/Describe": "writer",
    "/headwaiter.v1.Generation/Generate": "writer",
    "/headwaiter.v1.Generation/GenerateStream": "writer",
}
_SLOW_SECONDS = 45


def _unknown_field(size: int) -> bytes:
    """A serialized message with a field that no message has."""
    length, rest = b"", size
    while rest:
        length, rest = length + bytes([rest & 127 | (128 if rest > 127 else 0)]), rest >> 7
    return b"\xfa\x7f" + length + bytes(size)


@pytest.mark.parametrize("method", _CALLS)
def test_grpc_call_without_key_is_rejected_before_its_message_is_sent(service: ServiceProcess, method: str) -> None:
    rejected = threading.Event()

    def never() -> Iterator[bytes]:
        rejected.wait(TIMEOUT_SECONDS)
        yield from ()

    with grpc.insecure_channel(service.grpc) as channel:
        call = channel.stream_stream(method)(
            never(), metadata=[("application", _CALLS[method])], timeout=TIMEOUT_SECONDS / 2
        )
        try:
            assert call.code() is grpc.StatusCode.UNAUTHENTICATED
        finally:
            rejected.set()


@pytest.mark.parametrize("path", ["/models/writer/generate", "/models/unknown/generate"])
def test_http_request_without_key_is_rejected_before_its_body_is_sent(service: ServiceProcess, path: str) -> None:
    status, error = _send(service, f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n")
    assert (status, error["code"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("size", "has_key", "code"),
    [
        (200 * _MB, False, grpc.StatusCode.UNAUTHENTICATED),
        (200 * _MB, True, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (3 * _MB // 2, True, grpc.StatusCode.INVALID_ARGUMENT),
        (_MB // 2, True, grpc.StatusCode.OK),
    ],
)
def test_catalog_takes_messages_up_to_one_mebibyte(
    service: ServiceProcess, key: str, size: int, has_key: bool, code: grpc.StatusCode
) -> None:
    metadata = [("application", "catalog"), *([("authorization", f"Bearer {key}")] if has_key else [])]
    with grpc.insecure_channel(service.grpc, [("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary("/headwaiter.v1.Models/ListModels").future(
            _unknown_field(size), metadata=metadata, timeout=TIMEOUT_SECONDS
        )
        assert call.code() is code


@pytest.mark.slow
def test_slow_clients_are_cut_off_and_others_are_answered(service: ServiceProcess, client: Client, key: str) -> None:
    head = f"POST /models/writer/generate HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
    with ThreadPoolExecutor(1) as pool, socket.create_connection(_address(service), _SLOW_SECONDS) as half_sent:
        half_sent.sendall(b"GET /models HTTP/1.1\r\nhost: a\r\n")
        trickled = pool.submit(_send, service, head + 'content-length: 1000\r\n\r\n{"prompt":')
        assert client.generate("writer", "ab", max_new_tokens=2).text
        started_at = time.monotonic()
        while half_sent.recv(1 << 16):
            pass
        assert time.monotonic() - started_at < 20
        status, error = trickled.result()
    assert (status, error["code"]) == (408, "DEADLINE_EXCEEDED")


def _send(service: ServiceProcess, request: str) -> tuple[int, dict[str, str]]:
    """Send an incomplete request; returns the status and the error of the response."""
    with socket.create_connection(_address(service), _SLOW_SECONDS) as connection:
        connection.sendall(request.encode())
        response = b""
        while b"\r\n\r\n" not in response or not response.endswith(b"}}"):
            chunk = connection.recv(1 << 16)
            if not chunk:
                break
            response += chunk
    head, _, body = response.partition(b"\r\n\r\n")
    error: dict[str, str] = json.loads(body[body.index(b"{") :])["error"]
    return int(head.split()[1]), error


def _address(service: ServiceProcess) -> tuple[str, int]:
    host, _, port = service.http.removeprefix("http://").partition(":")
    return host, int(port)
