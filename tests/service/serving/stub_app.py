"""Stub applications. A model whose manifest has the source `fail MESSAGE` fails to start with MESSAGE."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from fastapi import FastAPI
from grpc_health.v1 import health_pb2
from ray import serve
from ray.serve import Application

from headwaiter.package.manifest import open_package


@serve.deployment
@serve.ingress()
class StubModel:
    def __init__(self, args: dict[str, Any]) -> None:
        self.args, self.busy = args, 0
        if "folder" in args:
            source = open_package(args["folder"]).manifest.source
            if source.startswith("fail "):
                raise RuntimeError(source.removeprefix("fail "))

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = FastAPI()

        @app.get("/")
        async def describe() -> dict[str, Any]:
            return {"process": os.getpid(), "busy": self.busy, **self.args}

        @app.get("/slow")
        async def slow(seconds: float) -> str:
            self.busy += 1
            await asyncio.sleep(seconds)
            self.busy -= 1
            return "done"

        return app

    async def Check(self, request: health_pb2.HealthCheckRequest) -> health_pb2.HealthCheckResponse:  # noqa: N802, ARG002
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


def model(args: dict[str, Any]) -> Application:
    return StubModel.options(name="model").bind(args)


def catalog(args: dict[str, Any]) -> Application:
    return StubModel.options(name="catalog").bind(args)
