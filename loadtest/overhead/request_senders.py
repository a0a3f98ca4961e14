"""Functions that send benchmark requests to a served model."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import numpy as np
from PIL import Image as PilImage

from headwaiter.v1.classification_pb2 import ClassifyRequest, Input
from headwaiter.v1.classification_pb2_grpc import ClassificationStub
from headwaiter.v1.common_pb2 import Image
from headwaiter.v1.translation_pb2 import TranslateRequest
from headwaiter.v1.translation_pb2_grpc import TranslationStub
from loadtest.overhead.async_callers import Send
from loadtest.sentences import sentences

OPUS = Path("models/opus-mt-zh-en/1/int8")
SENTENCES, IMAGES = 256, 32


@asynccontextmanager
async def translate_sender(address: str, name: str, texts: Sequence[str] | None = None) -> AsyncIterator[Send]:
    """Over gRPC; calls raise `grpc.aio.AioRpcError`."""
    texts, metadata = texts or sentences(SENTENCES), (("application", name),)
    async with grpc.aio.insecure_channel(address) as channel:
        translate = TranslationStub(channel).Translate
        yield lambda number: translate(TranslateRequest(text=[texts[number % len(texts)]]), metadata=metadata)


@asynccontextmanager
async def http_translate_sender(address: str, name: str, texts: Sequence[str] | None = None) -> AsyncIterator[Send]:
    """Over HTTP with kept connections, as many as requests are pending; calls raise `aiohttp.ClientError`."""
    texts, url = texts or sentences(SENTENCES), f"{address}/models/{name}/translate"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def send(number: int) -> object:
            async with session.post(url, json={"text": texts[number % len(texts)]}) as response:
                await response.read()
                response.raise_for_status()
            return response

        yield send


@asynccontextmanager
async def classify_sender(address: str, name: str, inputs: list[Input]) -> AsyncIterator[Send]:
    requests, metadata = [ClassifyRequest(input=[item]) for item in inputs], (("application", name),)
    async with grpc.aio.insecure_channel(address) as channel:
        classify = ClassificationStub(channel).Classify
        yield lambda number: classify(requests[number % len(requests)], metadata=metadata)


def images() -> list[Input]:
    return [Input(image=Image(data=data)) for data in sample_jpegs()]


def sample_jpegs() -> list[bytes]:
    """Return JPEG images of 640 × 480 pixels."""
    jpegs = []
    for seed in range(IMAGES):
        pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        file = io.BytesIO()
        PilImage.fromarray(pixels).resize((640, 480)).save(file, "JPEG")
        jpegs.append(file.getvalue())
    return jpegs
