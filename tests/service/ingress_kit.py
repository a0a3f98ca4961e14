"""A model's host behind a real gRPC server in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from headwaiter.v1 import common_pb2
from loadtest.plain import listening
from service.host import HostArgs, ModelHost
from tests.conftest import Packages
from tests.counts_kit import Counts

GREEDY = common_pb2.Decoding(beams=1, max_new_tokens=12)


@asynccontextmanager
async def serving(packages: Packages, kind: str, **args: Any) -> AsyncIterator[tuple[grpc.aio.Channel, ModelHost]]:
    package = packages(kind, "fp32").package
    host = ModelHost(HostArgs(name=kind, folder=package.folder, threads=1, **args), Counts())
    try:
        async with listening(host) as address, grpc.aio.insecure_channel(address) as channel:
            yield channel, host
    finally:
        host.close()


def details_of(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.BadRequest, error_details_pb2.ErrorInfo]:
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    for each in status.details:
        each.Unpack(request)
        each.Unpack(info)
    assert status.code == error.code().value[0]
    return request, info
