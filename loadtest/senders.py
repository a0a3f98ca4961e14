"""Requests to a served model, for callers to send."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
from PIL import Image as Picture

from headwaiter.v1.classification_pb2 import ClassifyRequest, Input
from headwaiter.v1.classification_pb2_grpc import ClassificationStub
from headwaiter.v1.common_pb2 import Image
from headwaiter.v1.translation_pb2 import TranslateRequest
from headwaiter.v1.translation_pb2_grpc import TranslationStub
from loadtest.callers import Send
from loadtest.sentences import sentences

OPUS = Path("models/opus-mt-zh-en/1/int8")
SENTENCES, IMAGES = 256, 32


@asynccontextmanager
async def translating(address: str, name: str) -> AsyncIterator[Send]:
    texts, metadata = sentences(SENTENCES), (("application", name),)
    async with grpc.aio.insecure_channel(address) as channel:
        translate = TranslationStub(channel).Translate
        yield lambda number: translate(TranslateRequest(text=[texts[number % len(texts)]]), metadata=metadata)


@asynccontextmanager
async def classifying(address: str, name: str, inputs: list[Input]) -> AsyncIterator[Send]:
    requests, metadata = [ClassifyRequest(input=[each]) for each in inputs], (("application", name),)
    async with grpc.aio.insecure_channel(address) as channel:
        classify = ClassificationStub(channel).Classify
        yield lambda number: classify(requests[number % len(requests)], metadata=metadata)


def images() -> list[Input]:
    return [Input(image=Image(data=data)) for data in pictures()]


def pictures() -> list[bytes]:
    """Photographs as they come: JPEG, 640 × 480."""
    found = []
    for seed in range(IMAGES):
        coarse = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        file = io.BytesIO()
        Picture.fromarray(coarse).resize((640, 480)).save(file, "JPEG")
        found.append(file.getvalue())
    return found
