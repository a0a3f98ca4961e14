"""Calls served models. Needs grpcio and protobuf, nothing else of Headwaiter.

from service.client import Client

with Client("localhost:9000") as client:
    print(client.translate("opus-mt-zh-en", "服务器崩溃了，请稍后再试。").text)
"""

from __future__ import annotations

from service.client.aio import AsyncClient, AsyncEpisode, AsyncTextStream
from service.client.errors import (
    Cancelled,
    DeadlineExceeded,
    EpisodeLost,
    HeadwaiterError,
    InternalError,
    InvalidInput,
    NotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    WrongTask,
)
from service.client.requests import History, Step
from service.client.retries import NO_RETRIES, Retries
from service.client.sync import Client, Episode, TextStream

__all__ = [
    "NO_RETRIES",
    "AsyncClient",
    "AsyncEpisode",
    "AsyncTextStream",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "Episode",
    "EpisodeLost",
    "HeadwaiterError",
    "History",
    "InternalError",
    "InvalidInput",
    "NotFound",
    "Overloaded",
    "Retries",
    "Step",
    "TextStream",
    "Unauthenticated",
    "Unavailable",
    "WrongTask",
]
