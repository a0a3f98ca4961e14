"""Python client for served models. Depends only on grpcio and protobuf.

from headwaiter.client import Client

with Client("localhost:9000") as client:
    print(client.translate("opus-mt-zh-en", "服务器崩溃了，请稍后再试。").text)
"""

from __future__ import annotations

from headwaiter.client.aio import AsyncClient, AsyncEpisode, AsyncTextStream
from headwaiter.client.errors import (
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
    WrongAddress,
    WrongTask,
)
from headwaiter.client.requests import History, Step
from headwaiter.client.retries import NO_RETRIES, RetryPolicy
from headwaiter.client.sync import Client, Episode, TextStream

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
    "RetryPolicy",
    "Step",
    "TextStream",
    "Unauthenticated",
    "Unavailable",
    "WrongAddress",
    "WrongTask",
]
