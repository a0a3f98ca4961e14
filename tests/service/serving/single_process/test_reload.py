"""Reloading the models of a single process while it serves."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headwaiter.client import AsyncClient, NotFound
from headwaiter.serving.config import Service
from headwaiter.serving.errors import LaunchError, PreconditionError
from headwaiter.serving.single_process import SingleProcess
from tests.conftest import Packages
from tests.service.serving.single_process.conftest import Configure, Run

TIMEOUT_SECONDS = 60


def client_of(service: Service) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{service.config.grpc.port}", timeout=TIMEOUT_SECONDS)


async def get(service: Service, path: str) -> tuple[int, Any]:
    def send() -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{service.config.http.port}{path}", timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return await asyncio.to_thread(send)


def servers(process: SingleProcess) -> dict[str, Any]:
    return {name: model.server for name, model in process.models.current.items()}


async def test_reload_replaces_changed_models_and_keeps_others_without_failed_requests(
    run: Run, configure: Configure
) -> None:
    async with run({"texts": "bert", "pictures": "vit"}) as (process, service), client_of(service) as client:
        before = servers(process)
        stopped, answers = asyncio.Event(), 0

        async def send_requests() -> None:
            nonlocal answers
            while not stopped.is_set():
                await client.classify("texts", text="ab cd")
                answers += 1

        load = asyncio.create_task(send_requests())
        changed = configure({"texts": ("bert", {"limits": {"text": 5000}}), "pictures": "vit", "writer": "gpt2"})
        await process.reload(changed)
        assert (await client.describe("texts")).limits["text"] == 5000
        answers_before = answers
        while answers < answers_before + 10:
            await asyncio.sleep(0.01)
        stopped.set()
        await load
        after = servers(process)
        assert after["pictures"] is before["pictures"]
        assert after["texts"] is not before["texts"]
        assert (await client.generate("writer", "ab", max_new_tokens=2)).text
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while before["texts"].is_ready():  # until the old model is closed
                await asyncio.sleep(0.02)
        await process.reload(configure({"writer": "gpt2"}))
        with pytest.raises(NotFound, match="available models: writer"):
            await client.classify("texts", text="ab")
        assert (await get(service, "/models/texts"))[0] == 404
        assert (await get(service, "/models/writer/readyz"))[0] == 200


async def test_reload_open_stream_of_replaced_model_continues(run: Run, configure: Configure) -> None:
    kind = "decision_transformer"
    async with run({"player": kind}) as (process, service), client_of(service) as client:
        old = servers(process)["player"]
        state = [0.0] * (await client.describe("player")).state_size
        async with client.episode("player", target_return=1.0) as episode:
            await episode.step(state)
            await process.reload(configure({"player": (kind, {"max_sequences": 3})}))
            assert servers(process)["player"] is not old
            assert (await episode.step(state, 0.5)).continuous
            assert old.model.counters["slots_in_use"] == 1
            assert servers(process)["player"].model.counters["slots_in_use"] == 0
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while old.is_ready():
                await asyncio.sleep(0.02)


async def test_reload_model_that_fails_keeps_old_models(
    run: Run, configure: Configure, packages: Packages, tmp_path: Path
) -> None:
    broken = tmp_path / "broken/1/fp32"
    shutil.copytree(packages("gpt2", "fp32").package.folder, broken)
    for graph in broken.glob("*.onnx"):
        graph.write_bytes(b"not a graph")
    async with run({"texts": "bert"}) as (process, service), client_of(service) as client:
        before = servers(process)
        models = {"texts": ("bert", {"limits": {"text": 5}}), "writer": ("gpt2", {"path": str(tmp_path / "broken")})}
        with pytest.raises(LaunchError, match="writer did not start: "):
            await process.reload(configure(models))
        assert servers(process) == before
        assert (await client.classify("texts", text="ab cd ef gh")).labels


async def test_reload_larger_message_limit_is_refused(run: Run, configure: Configure) -> None:
    async with run({"texts": ("bert", {"limits": {"message_mb": 1}})}) as (process, _):
        before = servers(process)
        with pytest.raises(PreconditionError, match=r"message_mb to 2; .* started with 1 "):
            await process.reload(configure({"texts": ("bert", {"limits": {"message_mb": 2}})}))
        assert servers(process) == before


async def test_stopped_engine_is_not_ready_and_model_is_loaded_again(run: Run) -> None:
    async with run({"texts": "bert"}) as (process, service), client_of(service) as client:
        before = servers(process)
        await asyncio.to_thread(before["texts"].model.close)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while servers(process) == before:
                await asyncio.sleep(0.05)
        assert (await client.classify("texts", text="ab")).labels


async def test_stop_ends_threads_of_the_models(run: Run) -> None:
    before = set(threading.enumerate())  # those of other tests, if an engine hangs on purpose
    async with run({"texts": "bert", "writer": "gpt2"}):
        assert engine_threads(before)
    assert not engine_threads(before)


def engine_threads(before: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("engine")]
