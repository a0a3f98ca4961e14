"""The drain of a single process ends within its bound with idle clients attached."""

from __future__ import annotations

import asyncio
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter.serving.single_process import process as process_module
from headwaiter.v1 import policy_pb2, policy_pb2_grpc
from tests.service.serving.single_process.conftest import Run

MODELS = {"player": ("decision_transformer", {"max_sequences": 4}), "writer": ("gpt2", {"max_sequences": 4})}


async def test_drain_with_watcher_and_idle_episode_ends_long_before_its_bound(run: Run) -> None:
    async with (
        run(MODELS) as (process, service),
        grpc.aio.insecure_channel(f"127.0.0.1:{service.config.grpc.port}") as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        episode = policy_pb2_grpc.PolicyStub(channel).Episode(metadata=[("application", "player")])
        await episode.write(policy_pb2.EpisodeRequest(start=policy_pb2.Start(target_return=1.0)))
        await asyncio.sleep(0.2)
        started_at = time.monotonic()
        await process.drain()
        assert time.monotonic() - started_at < process_module.DRAIN_SECONDS / 4
        assert await episode.code() is grpc.StatusCode.UNAVAILABLE
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watch.read() == grpc.aio.EOF
