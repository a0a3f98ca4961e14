"""Starts, reloads, drains and stops everything that a single-process service consists of."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from headwaiter.api.http.catalog import build_catalog_app
from headwaiter.api.keys import KeyFile
from headwaiter.api.model_server import ModelServerArgs
from headwaiter.serving.cluster import describe_error
from headwaiter.serving.config import CATALOG, Service
from headwaiter.serving.errors import LaunchError, PreconditionError
from headwaiter.serving.metrics import MetricsError, MetricsExporter, open_metrics
from headwaiter.serving.preflight import check_free_ports, cores
from headwaiter.serving.single_process.grpc_server import start_grpc_server
from headwaiter.serving.single_process.http_server import HttpDispatcher, HttpServer
from headwaiter.serving.single_process.served_model import ServedModel, model_args
from headwaiter.serving.single_process.served_models import Catalog, ServedModels

DRAIN_SECONDS = 60.0  # for open requests, as `graceful_shutdown_timeout_s` of the replicas on Ray
_OBSERVE_SECONDS = 1.0
_GRPC_STOP_SECONDS = 0.5  # for streams of health checks and reflection, which end only with the client
_REOPEN_SECONDS = 5.0  # between attempts to load a model whose engine stopped
_LOG = logging.getLogger(__name__)

OnReady = Callable[[str, bool], None]
"""Called with the name of each model that is ready, and whether it is unchanged since before a reload."""


def _ignore(_: str, __: bool) -> None: ...


class SingleProcess:
    def __init__(self, service: Service) -> None:
        self._service = service
        self.models = ServedModels()
        self._http = HttpDispatcher(self.models)
        self._message_mb = _max_message_mb(service)
        self._changing = asyncio.Lock()
        self._retiring: dict[ServedModel, asyncio.Task[None]] = {}
        self._resources = AsyncExitStack()
        self.must_end = asyncio.Event()
        """Set if a model can only be replaced with the process; `end_reason` says why."""
        self.end_reason = ""

    async def start(self, on_ready: OnReady = _ignore) -> None:
        """Load all models, then accept requests. Raises LaunchError. Call `stop` in any case."""
        config = self._service.config
        host, file = config.http.host, self._service.file
        check_free_ports(config, file)
        folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="headwaiter-metrics-"))
        self._metrics = _open_metrics(Path(folder), host, config.metrics.port)
        self._resources.callback(self._metrics.close)
        self._catalog_metrics = self._metrics.for_model(CATALOG)
        self._catalog_metrics.set_ready(True)
        await self._switch(self._service, on_ready)
        self._resources.push_async_callback(HttpServer(self._http, host, config.http.port).stop)
        server = await start_grpc_server(self.models, host, config.grpc.port, self._message_mb)
        self._resources.push_async_callback(server.stop, _GRPC_STOP_SECONDS)
        observation = asyncio.create_task(self._observe_periodically())
        self._resources.callback(observation.cancel)

    async def reload(self, service: Service, on_ready: OnReady = _ignore) -> None:
        """Load the models that changed, switch to the new set, and drain the old models in the background.

        If a model cannot be loaded, the old set stays. Raises LaunchError.
        """
        message_mb = _max_message_mb(service)
        if message_mb > self._message_mb:
            raise PreconditionError(
                f"{service.file} raises limits.message_mb to {message_mb}; this process was started with "
                f"{self._message_mb} and must be restarted for more."
            )
        async with self._changing:
            await self._switch(service, on_ready)

    async def drain(self) -> None:
        """Report NOT_SERVING, reject new requests, and wait up to `DRAIN_SECONDS` for the open ones."""
        self.models.drain.begin()
        for model in self.models.current.values():
            model.server.drain.begin()
        waits = (model.requests.wait_until_none() for model in self.models.current.values())
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await asyncio.gather(*waits, *self._retiring.values())
        except TimeoutError:
            _LOG.warning("requests did not finish within %g s", DRAIN_SECONDS)

    async def stop(self) -> None:
        """Fail the requests that are still open and release everything."""
        self.models.drain.begin()
        models = [*self.models.current.values(), *self._retiring]
        for task in self._retiring.values():
            task.cancel()
        await asyncio.gather(*(model.close(0) for model in models))
        await self._resources.aclose()

    async def _switch(self, service: Service, on_ready: OnReady) -> None:
        old = self.models.current
        args = {name: model_args(service, name) for name in service.config.models}
        kept = {name: old[name] for name in args if name in old and old[name].is_current(args[name])}
        for name in kept:
            on_ready(name, True)
        opened = await self._open_all([args[name] for name in args if name not in kept], on_ready)
        keys = KeyFile(service.keys) if service.keys is not None else None
        catalog = Catalog(self.models, keys, self._catalog_metrics, local=service.is_local)
        self._http.catalog_app = build_catalog_app(
            catalog.endpoint,
            names=lambda: self.models.names,
            not_ready=self.models.not_ready,
            alive=self.models.are_all_alive,
        )
        self.models.catalog = catalog
        self.models.current = {name: kept.get(name) or opened[name] for name in args}
        self._service = service
        for name, model in old.items():
            if name not in kept:
                self._retire(model)

    async def _open_all(self, all_args: Iterable[ModelServerArgs], on_ready: OnReady) -> dict[str, ServedModel]:
        """Load models, at most one per core at a time. If one fails, close the others and raise LaunchError."""
        slots = asyncio.Semaphore(cores())

        async def open_one(args: ModelServerArgs) -> ServedModel:
            async with slots:
                model = await ServedModel.open(args, self._metrics.for_model(args.name), self._is_accepting)
            on_ready(args.name, False)
            return model

        tasks = {args.name: asyncio.create_task(open_one(args)) for args in all_args}
        results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        opened = {name: result for name, result in zip(tasks, results, strict=True) if isinstance(result, ServedModel)}
        for name, result in zip(tasks, results, strict=True):
            if isinstance(result, BaseException):
                await asyncio.gather(*(model.close(0) for model in opened.values()))
                cause = describe_error(result)
                _LOG.error("%s did not start: %s", name, cause)
                self._metrics.for_model(name).record_start_failure()
                raise LaunchError(f"{name} did not start: {cause}.") from result
        return opened

    def _is_accepting(self) -> bool:
        return self.models.is_accepting

    def _retire(self, model: ServedModel) -> None:
        task = asyncio.create_task(model.close(DRAIN_SECONDS))
        self._retiring[model] = task
        task.add_done_callback(lambda _: self._retiring.pop(model))

    async def _observe_periodically(self) -> None:
        while True:
            for model in self.models.current.values():
                try:
                    model.server.observe()
                except Exception:  # a failed observation must not stop later ones
                    _LOG.exception("metrics of %s could not be observed", model.args.name)
            unhealthy = [model.server for model in self.models.current.values() if not model.server.is_ready()]
            hung = [server for server in unhealthy if server.health.cause == "hung"]
            if hung:
                self.end_reason = f"{hung[0].name} is hung: {hung[0].health.reason}"
                self.must_end.set()
                return
            if unhealthy:
                await self._reopen([server.name for server in unhealthy])
            await asyncio.sleep(_OBSERVE_SECONDS)

    async def _reopen(self, names: Iterable[str]) -> None:
        """Load models whose engine has stopped again, as Ray replaces unhealthy replicas.

        A hung thread cannot be ended; it would keep its CPU and memory. The process must then be restarted.
        """
        _LOG.error("the engine of %s has stopped; it is loaded again", ", ".join(names))
        try:
            await self.reload(self._service)
        except Exception:
            _LOG.exception("the models could not be loaded")
            await asyncio.sleep(_REOPEN_SECONDS)


def _max_message_mb(service: Service) -> int:
    return max(model.limits.message_mb for model in service.config.models.values())


def _open_metrics(folder: Path, host: str, port: int) -> MetricsExporter:
    try:
        return open_metrics(folder, port, host=host)
    except MetricsError as error:
        raise PreconditionError(f"{error}.") from error
