"""Serves a model on a real gRPC server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.v1 import common_pb2
from loadtest.overhead.plain_grpc_server import grpc_server
from tests.conftest import Packages
from tests.counts_kit import Counts

GREEDY = common_pb2.Decoding(num_beams=1, max_new_tokens=12)
TEST_TIMEOUT_SECONDS = 180


@asynccontextmanager
async def serving(
    packages: Packages, kind: str, *, keys: Path | None = None, **settings: Any
) -> AsyncIterator[tuple[grpc.aio.Channel, ModelServer]]:
    """Serve the fp32 package of a model with fields of `ModelSettings` as `settings`.

    The body fails with TimeoutError after `TEST_TIMEOUT_SECONDS`.
    """
    package = packages(kind, "fp32").package
    args = ModelServerArgs(name=kind, folder=package.folder, keys=keys, settings={"threads": 1, **settings})
    model_server = ModelServer(args, Counts())
    try:
        async with (
            asyncio.timeout(TEST_TIMEOUT_SECONDS),
            grpc_server(model_server) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            yield channel, model_server
    finally:
        model_server.close()


def overload(model_server: ModelServer) -> None:
    """Make the model server reject requests: one is being preprocessed, and the last one took very long."""
    backlog = model_server.executor.preprocessing
    backlog.begin()
    backlog.begin()
    backlog.end(1_000.0)


def details_of(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.BadRequest, error_details_pb2.ErrorInfo]:
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    bad_request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    for detail in status.details:
        detail.Unpack(bad_request)
        detail.Unpack(info)
    assert status.code == error.code().value[0]
    return bad_request, info
