"""A model on a plain grpc.aio server with the same servicer as on Ray Serve.

`python -m loadtest.overhead.plain_grpc_server FOLDER NAME THREADS` serves a model until stdin is closed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.engine.settings import ModelSettings
from headwaiter.serving.metrics import open_metrics
from headwaiter.v1 import (
    captioning_pb2_grpc,
    classification_pb2_grpc,
    detection_pb2_grpc,
    generation_pb2_grpc,
    models_pb2_grpc,
    policy_pb2_grpc,
    translation_pb2_grpc,
)

_REGISTER: tuple[Any, ...] = (
    translation_pb2_grpc.add_TranslationServicer_to_server,
    captioning_pb2_grpc.add_CaptioningServicer_to_server,
    classification_pb2_grpc.add_ClassificationServicer_to_server,
    detection_pb2_grpc.add_DetectionServicer_to_server,
    policy_pb2_grpc.add_PolicyServicer_to_server,
    generation_pb2_grpc.add_GenerationServicer_to_server,
    models_pb2_grpc.add_ModelsServicer_to_server,
    health_pb2_grpc.add_HealthServicer_to_server,
)


@asynccontextmanager
async def grpc_server(servicer: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve on the loopback interface and yield the address; port 0 selects a free port."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    for register in _REGISTER:
        register(servicer, server)
    bound_port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound_port}"
    finally:
        await server.stop(grace=5)


async def _main(folder: str, name: str, threads: int) -> None:
    """Print the address and serve until stdin is closed."""
    with tempfile.TemporaryDirectory() as scratch:
        metrics = open_metrics(scratch, 0, host="127.0.0.1")
        args = ModelServerArgs(name=name, folder=Path(folder), settings=ModelSettings(threads=threads))
        model_server = ModelServer(args, metrics.for_model(name))
        async with grpc_server(model_server) as address:
            print(address, flush=True)  # noqa: T201
            await asyncio.to_thread(sys.stdin.read)
        model_server.close()
        metrics.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
