"""Send fuzz requests over gRPC and HTTP, and cancel them when they say so."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import grpc.aio

from headwaiter.api.methods import METHODS
from loadtest.abuse.fuzz.requests import FuzzRequest
from loadtest.abuse.http_connection import HttpConnection, MalformedResponseError, request_bytes

CLIENT_CANCELLED = "cancelled by the client"
DISCONNECTED = "DISCONNECTED"
HUNG = "HUNG"
STATUS_LOST = "status lost by the client"
"""gRPC replaced the server's status by its own because the server ended the call while the client was writing."""
_GRACE_SECONDS = 30.0  # after the timeout of a request
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


class GrpcSender:
    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, _OPTIONS)

    async def send(self, request: FuzzRequest) -> tuple[str, str]:
        """Return the code and its message. A call that does not end is HUNG."""
        method = METHODS[request.method]
        arity = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        metadata = [*request.headers, *([("application", request.model)] if request.model is not None else [])]
        multi_callable = getattr(self._channel, arity)(method.path)
        messages = iter(request.messages) if method.client_streaming else request.messages[0]
        call = multi_callable(messages, timeout=request.timeout, metadata=metadata)
        if request.cancel_seconds is not None:
            asyncio.get_running_loop().call_later(request.cancel_seconds, call.cancel)
        try:
            async with asyncio.timeout(request.timeout + _GRACE_SECONDS):
                if method.server_streaming:
                    await _read_stream(call, request.cancel_chunks)
                else:
                    await call
        except grpc.aio.AioRpcError as error:
            is_lost = method.client_streaming and error.details() == "Internal error from Core"
            return STATUS_LOST if is_lost else error.code().name, error.details() or ""
        except asyncio.CancelledError:
            if not request.is_cancelled_by_client:
                raise
            return CLIENT_CANCELLED, ""
        except TimeoutError:
            call.cancel()
            return HUNG, f"no status after {request.timeout + _GRACE_SECONDS:.0f} s"
        return "OK", ""

    async def close(self) -> None:
        await self._channel.close(0)


async def _read_stream(call: grpc.aio.Call, cancel_chunks: int | None) -> None:
    chunks = 0
    while (await call.read()) is not grpc.aio.EOF:
        chunks += 1
        if cancel_chunks is not None and chunks > cancel_chunks:
            call.cancel()
            raise asyncio.CancelledError


class HttpSender:
    def __init__(self, url: str) -> None:
        self._connection = HttpConnection(url)

    async def send(self, request: FuzzRequest) -> tuple[str, str]:
        try:
            async with asyncio.timeout(request.timeout + _GRACE_SECONDS):
                if request.cancel_seconds is None:
                    return await self._exchange(request)
                with suppress(TimeoutError):
                    async with asyncio.timeout(request.cancel_seconds):
                        return await self._exchange(request)
            self._connection.close()
            return CLIENT_CANCELLED, ""
        except TimeoutError:
            self._connection.close()
            return HUNG, f"no response after {request.timeout + _GRACE_SECONDS:.0f} s"
        except (OSError, EOFError, ValueError, MalformedResponseError) as error:
            self._connection.close()
            return DISCONNECTED, repr(error)

    async def _exchange(self, request: FuzzRequest) -> tuple[str, str]:
        await self._connection.send(
            request_bytes(request.http_method, request.path, request.headers, request.messages[0])
        )
        response = await self._connection.read_head()
        if request.cancel_chunks is not None and response.headers.get("transfer-encoding") == "chunked":
            for _ in range(request.cancel_chunks):
                if not await self._connection.read_chunk():
                    break
            self._connection.close()
            return CLIENT_CANCELLED, ""
        await self._connection.read_body(response, is_head=request.http_method == "HEAD")
        if response.status >= 500 and request.http_method == "HEAD":
            return f"HTTP {response.status}", ""
        code = response.code
        message = response.body[:300].decode(errors="replace") if code != "OK" else ""
        if code == "OK" and b"event: error" in response.body:
            code, message = _event_error(response.body)
        return code, message

    async def close(self) -> None:
        self._connection.close()


def _event_error(body: bytes) -> tuple[str, str]:
    """The code of the error event that ends a stream."""
    data = body.rpartition(b"event: error")[2].partition(b"data: ")[2].partition(b"\n")[0].decode(errors="replace")
    code = data.partition('"code":')[2].partition('"')[2].partition('"')[0]
    return code or "UNKNOWN", data[:300]
