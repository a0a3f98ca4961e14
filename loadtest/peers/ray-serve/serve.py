"""Ray Serve with `@serve.batch` behind the default proxy."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import ray
from engines import FAST_ENGINES, MAX_BATCH_SIZE, options
from ray import serve
from starlette.requests import Request


@serve.deployment(max_ongoing_requests=128, ray_actor_options={"num_cpus": 1})
class Model:
    def __init__(self, task: str, field: str, folder: str, threads: int) -> None:
        self._engine, self._field = FAST_ENGINES[task](Path(folder), threads), field
        self.predict.set_max_batch_size(MAX_BATCH_SIZE[task])

    @serve.batch(batch_wait_timeout_s=0.01)
    async def predict(self, batch: list[str]) -> list[str]:
        return list(self._engine(batch))

    async def __call__(self, request: Request) -> dict[str, str]:
        return {"answer": await self.predict((await request.json())[self._field])}


if __name__ == "__main__":
    arguments = options()
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    ray.init(address="local", include_dashboard=False, num_cpus=arguments.threads, runtime_env={"env_vars": path})
    serve.start(http_options={"host": "127.0.0.1", "port": arguments.port})
    serve.run(
        Model.bind(arguments.task, arguments.field, str(arguments.model), arguments.threads), route_prefix="/predict"
    )
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
