"""Hostile sizes: bodies, counts, images and headers that are far too large are rejected, and cost little memory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import grpc
import grpc.aio

from headwaiter.api.methods import METHODS
from headwaiter.v1 import captioning_pb2, classification_pb2, common_pb2, detection_pb2
from loadtest.abuse.hostile_images import one_bit_png, strip_png
from loadtest.abuse.http_connection import HttpConnection, MalformedResponseError, request_bytes
from loadtest.abuse.scenario import SharedRun, SharedScenario
from loadtest.abuse.target import PeakMemory
from loadtest.service_process import ServiceProcess

MAX_GROWTH_MB = 400
"""Of one replica during an attack of several requests of up to 32 MB at a time."""
_AT_A_TIME = 3
_TIMEOUT_SECONDS = 60.0
_MB = 1 << 20
_REJECTED = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "UNIMPLEMENTED", "HTTP 400", "HTTP 413", "HTTP 431")
_TOO_LONG = (*_REJECTED, "OK", "DEADLINE_EXCEEDED")  # legal, but may take longer than the client waits
_CUT_OFF = (*_REJECTED, "DISCONNECTED", "UNAVAILABLE", "INTERNAL")  # the proxy may close the connection
_CATALOG = "catalog"
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    send: Callable[[], Awaitable[str]]  # returns the code
    expected: tuple[str, ...] = _REJECTED


def run(abuse: SharedRun) -> None:
    for attack in _attacks(abuse):
        replicas = {name: pids[0] for name, pids in abuse.target.replicas().items()}
        (catalog,) = abuse.target.service.replicas(_CATALOG)
        started = time.monotonic()
        with PeakMemory({**replicas, _CATALOG: catalog}) as memory:
            codes = asyncio.run(_send(attack))
        name, growth = memory.largest
        answers = ", ".join(f"{code} {count}" for code, count in codes.items())
        is_met = set(codes) <= set(attack.expected) and growth <= MAX_GROWTH_MB
        abuse.add(
            f"{_AT_A_TIME} × {attack.name}",
            f"{answers} in {time.monotonic() - started:.1f} s; {name} +{growth:,.0f} MB",
            f"rejected, at most +{MAX_GROWTH_MB} MB" if attack.expected is not _TOO_LONG else f"+{MAX_GROWTH_MB} MB",
            is_met=is_met,
        )


async def _send(attack: Attack) -> Counter[str]:
    return Counter(await asyncio.gather(*(attack.send() for _ in range(_AT_A_TIME))))


def _attacks(abuse: SharedRun) -> list[Attack]:
    service, scale = abuse.target.service, int(abuse.options.scaled(32, 4))
    attacks = [*_body_attacks(abuse, scale), *_image_attacks(abuse)]
    catalog_bytes = int(abuse.options.scaled(200, 20)) * _MB
    list_models = partial(_call, service, None, "ListModels")
    attacks += [
        Attack(
            f"{catalog_bytes // _MB} MB to the catalog over gRPC",
            partial(list_models, b"\x0a\x00" * (catalog_bytes // 2)),
            _CUT_OFF,
        ),
        Attack(
            f"{catalog_bytes // _MB} MB to the catalog over HTTP",
            partial(_post, service, "/models", catalog_bytes),
            _CUT_OFF,
        ),
        Attack("a header of 1 MB over HTTP", partial(_post, service, "/models", 0, ("x-large", "a" * _MB)), _CUT_OFF),
        Attack("metadata of 1 MB over gRPC", partial(list_models, b"", (("x-large", "a" * _MB),)), _CUT_OFF),
    ]
    return attacks


def _body_attacks(abuse: SharedRun, scale: int) -> list[Attack]:
    service, model = abuse.target.service, abuse.target.model("translation")
    if model is None:
        return []
    path = f"/models/{model}/translate"
    keys = ",".join(f'"k{index}":1' for index in range(scale * 60_000)).encode()
    strings = b'{"text":[' + b",".join([b'""'] * (scale * _MB // 4)) + b"]}"
    return [
        Attack(
            f"{scale} MB of empty strings over gRPC",
            partial(_call, service, model, "Translate", b"\x0a\x00" * (scale * _MB // 2)),
        ),
        Attack(f"{len(strings) / _MB:.0f} MB of empty strings over HTTP", partial(_post_body, service, path, strings)),
        Attack(
            f"{len(keys) / _MB:.0f} MB of unknown JSON keys", partial(_post_body, service, path, b"{" + keys + b"}")
        ),
        Attack("JSON of a million nested lists", partial(_post_body, service, path, b"[" * 10**6 + b"]" * 10**6)),
        Attack(
            "JSON with a number of a million digits",
            partial(_post_body, service, path, b'{"text":' + b"9" * 10**6 + b"}"),
        ),
    ]


def _image_attacks(abuse: SharedRun) -> list[Attack]:
    service, attacks = abuse.target.service, []
    large, strip = one_bit_png(), strip_png()
    for task, method in (("classification", "Classify"), ("detection", "Detect"), ("captioning", "Caption")):
        model = abuse.target.model(task)
        if model is None:
            continue
        attacks += [
            Attack(
                f"256 one-bit PNG of 32 megapixels to {model}", partial(_images, service, model, method, [large] * 256)
            ),
            Attack(
                f"7 one-bit PNG of 32 megapixels to {model}",
                partial(_images, service, model, method, [large] * 7, 10.0),
                _TOO_LONG,
            ),
            Attack(
                f"200 strips of 10 × 6000 to {model}",
                partial(_images, service, model, method, [strip] * 200, 10.0),
                _TOO_LONG,
            ),
        ]
    return attacks


async def _images(
    service: ServiceProcess, model: str, method: str, data: list[bytes], timeout: float = _TIMEOUT_SECONDS
) -> str:
    images = [common_pb2.Image(data=content) for content in data]
    messages = {
        "Classify": lambda: classification_pb2.ClassifyRequest(
            input=[classification_pb2.Input(image=image) for image in images]
        ),
        "Detect": lambda: detection_pb2.DetectRequest(image=images),
        "Caption": lambda: captioning_pb2.CaptionRequest(image=images),
    }
    return await _call(service, model, method, messages[method]().SerializeToString(), timeout=timeout)


async def _call(
    service: ServiceProcess,
    model: str | None,
    method: str,
    content: bytes,
    metadata: tuple[tuple[str, str], ...] = (),
    timeout: float = _TIMEOUT_SECONDS,
) -> str:
    application = (("application", model),) if model is not None else ()
    async with grpc.aio.insecure_channel(service.grpc, _OPTIONS) as channel:
        try:
            await channel.unary_unary(METHODS[method].path)(
                content, metadata=(*application, *metadata), timeout=timeout
            )
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


async def _post(service: ServiceProcess, path: str, size: int, header: tuple[str, str] = ("x-small", "a")) -> str:
    return await _post_body(service, path, b" " * size, header)


async def _post_body(
    service: ServiceProcess, path: str, body: bytes, header: tuple[str, str] = ("x-small", "a")
) -> str:
    connection = HttpConnection(service.http)
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await connection.send(request_bytes("POST", path, (("content-type", "application/json"), header), body))
            response = await connection.read_head()
            await connection.read_body(response)
            return response.code
    except TimeoutError:
        return "HUNG"
    except (OSError, EOFError, ValueError, MalformedResponseError):
        return "DISCONNECTED"
    finally:
        connection.close()


SCENARIO = SharedScenario("hostile sizes", "bodies, counts, images and headers that are far too large", run)
