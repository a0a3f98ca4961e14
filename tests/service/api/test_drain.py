"""At drain, watchers and idle episodes end, and open calls are completed. Watchers are limited in number and time."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter.api import drain, health
from headwaiter.v1 import generation_pb2, generation_pb2_grpc, policy_pb2, policy_pb2_grpc
from tests.conftest import Packages
from tests.model_server_kit import GREEDY, serving

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_REQUEST = health_pb2.HealthCheckRequest()


async def test_watch_at_drain_reports_not_serving_and_ends(packages: Packages) -> None:
    async with serving(packages, "bert") as (channel, server):
        watch = health_pb2_grpc.HealthStub(channel).Watch(_REQUEST)
        assert (await watch.read()).status == _SERVING
        server.drain.begin()
        assert (await watch.read()).status == _NOT_SERVING
        assert await watch.read() == grpc.aio.EOF
        assert await watch.code() is grpc.StatusCode.OK


async def test_watch_beyond_the_limit_is_rejected_until_one_ends(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MAX_WATCHERS", 2)
    async with serving(packages, "bert") as (channel, _):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(_REQUEST) for _ in range(2)]
        for watch in watches:
            assert (await watch.read()).status == _SERVING
        rejected = stub.Watch(_REQUEST)
        with pytest.raises(grpc.aio.AioRpcError, match="2 clients watch") as caught:
            await rejected.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(_REQUEST)).status == _SERVING
        watches[0].cancel()
        while True:  # the server notices the cancellation within its interval
            try:
                assert (await stub.Watch(_REQUEST).read()).status == _SERVING
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)


async def test_watch_ends_after_its_time(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WATCH_SECONDS", 0.5)
    async with serving(packages, "bert") as (channel, _):
        watch = health_pb2_grpc.HealthStub(channel).Watch(_REQUEST)
        assert (await watch.read()).status == _SERVING
        assert await watch.read() == grpc.aio.EOF


async def test_idle_episode_at_drain_is_unavailable_after_a_grace_period(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "_GRACE_SECONDS", 1.0)
    async with serving(packages, "decision_transformer", max_sequences=2) as (channel, server):
        episode = policy_pb2_grpc.PolicyStub(channel).Episode()
        await episode.write(policy_pb2.EpisodeRequest(start=policy_pb2.Start(target_return=1.0)))
        policy = server.model.manifest.policy
        assert policy is not None
        step = policy_pb2.EpisodeRequest(observation=policy_pb2.Observation(state=[0.0] * policy.state_size))
        await episode.write(step)
        await episode.read()
        began_at = time.monotonic()
        server.drain.begin()
        step.observation.reward = 0.0
        await episode.write(step)  # accepted during the grace period
        await episode.read()
        with pytest.raises(grpc.aio.AioRpcError, match="stopping") as caught:
            await episode.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert 1.0 <= time.monotonic() - began_at < 10


async def test_open_call_at_drain_is_completed(packages: Packages) -> None:
    async with serving(packages, "gpt2") as (channel, server):
        stub = generation_pb2_grpc.GenerationStub(channel)
        call = asyncio.ensure_future(
            stub.Generate(generation_pb2.GenerateRequest(prompt=["once"] * 64, decoding=GREEDY))
        )
        await asyncio.sleep(0.01)
        server.drain.begin()
        assert len((await call).results) == 64
