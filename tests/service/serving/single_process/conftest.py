"""A single-process service in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headwaiter.serving.config import Service, load_config
from headwaiter.serving.single_process import SingleProcess
from loadtest.service_process import free_ports
from tests.conftest import Packages
from tests.serving_kit import write_config

Configure = Callable[..., Service]
Run = Callable[..., AbstractAsyncContextManager[tuple[SingleProcess, Service]]]


@pytest.fixture
def configure(packages: Packages, tmp_path: Path) -> Configure:
    """Write and load a serve.yaml. A model is given as its kind, or as its kind and settings."""
    ports = {name: {"port": port} for name, port in free_ports("grpc", "http", "metrics").items()}

    def write(models: dict[str, Any], **more: Any) -> Service:
        pairs = {name: (model, {}) if isinstance(model, str) else model for name, model in models.items()}
        section = {
            name: {"path": str(packages(kind, "fp32").package.folder), **settings}
            for name, (kind, settings) in pairs.items()
        }
        return load_config(write_config(tmp_path / "serve.yaml", {**ports, "models": section, **more}))

    return write


@pytest.fixture
def run(configure: Configure) -> Run:
    @asynccontextmanager
    async def start(models: dict[str, Any], **more: Any) -> AsyncIterator[tuple[SingleProcess, Service]]:
        service = configure(models, **more)
        process = SingleProcess(service)
        try:
            await process.start()
            yield process, service
        finally:
            await process.stop()

    return start
