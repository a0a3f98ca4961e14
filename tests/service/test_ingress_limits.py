"""What is refused over gRPC, in which words, and that the service goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter.v1 import (
    captioning_pb2,
    captioning_pb2_grpc,
    classification_pb2,
    classification_pb2_grpc,
    common_pb2,
    detection_pb2,
    detection_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    translation_pb2,
    translation_pb2_grpc,
)
from service.keys import line_for, make_key
from tests.conftest import Packages
from tests.service.ingress_kit import GREEDY, details_of, serving

BAD = [
    ("marian", "Translate", translation_pb2.TranslateRequest(), "text", "text is empty"),
    (
        "marian",
        "Translate",
        translation_pb2.TranslateRequest(text=["a", "b" * 501]),
        "text[1]",
        "text[1] has 501 characters; the limit is 500",
    ),
    (
        "marian",
        "Translate",
        translation_pb2.TranslateRequest(text=["a"], decoding=common_pb2.Decoding(beams=0)),
        "decoding.beams",
        "decoding.beams is 0; it has to be at least 1",
    ),
    (
        "marian",
        "Translate",
        translation_pb2.TranslateRequest(text=["a"] * 257),
        "text",
        "text has 257 inputs; the limit is 256",
    ),
    (
        "marian",
        "Translate",
        translation_pb2.TranslateRequest(text=["a" * 100] * 256 * 60),
        "",
        "the request has 1.5 MB; the limit is 1 MB",
    ),
    ("bert", "Classify", classification_pb2.ClassifyRequest(input=[classification_pb2.Input()]), "input[0]", "empty"),
    (
        "bert",
        "Classify",
        classification_pb2.ClassifyRequest(input=[{"image": {"data": b"x"}}]),
        "input[0].image",
        "this model classifies texts",
    ),
    (
        "bert",
        "Classify",
        classification_pb2.ClassifyRequest(input=[{"text": "a"}, {"text_pair": {"first": "b", "second": "c" * 501}}]),
        "input[1].text_pair",
        "input[1].text_pair has 501 characters; the limit is 500",
    ),
    (
        "detr",
        "Detect",
        detection_pb2.DetectRequest(image=[{"data": b"soup"}]),
        "image[0]",
        "image[0] is not an image",
    ),
    (
        "decision_transformer",
        "Act",
        policy_pb2.ActRequest(history=[policy_pb2.History(target_return=1.0, steps=[{"state": [1.0]}])]),
        "history[0].steps[0].state",
        "history[0].steps[0].state has 1 numbers",
    ),
    (
        "decision_transformer",
        "Act",
        policy_pb2.ActRequest(history=[policy_pb2.History(target_return=1.0)]),
        "history[0]",
        "history[0] is empty",
    ),
    (
        "decision_transformer",
        "Act",
        policy_pb2.ActRequest(history=[{"steps": [{"state": [1.0]}]}]),
        "history[0].target_return",
        "history[0].target_return is missing",
    ),
]


STUBS: dict[str, Any] = {
    "Translate": translation_pb2_grpc.TranslationStub,
    "Classify": classification_pb2_grpc.ClassificationStub,
    "Detect": detection_pb2_grpc.DetectionStub,
    "Act": policy_pb2_grpc.PolicyStub,
    "Caption": captioning_pb2_grpc.CaptioningStub,
    "Generate": generation_pb2_grpc.GenerationStub,
    "GenerateImages": generation_pb2_grpc.GenerationStub,
    "Describe": models_pb2_grpc.ModelsStub,
}


@pytest.mark.parametrize(("kind", "method", "request_", "field", "sentence"), BAD)
async def test_bad_input_names_the_field_and_the_service_goes_on(
    packages: Packages, kind: str, method: str, request_: Any, field: str, sentence: str
) -> None:
    async with serving(packages, kind, limits={"text": 500, "message_mb": 1}) as (channel, host):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(STUBS[method](channel), method)(request_)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in caught.value.details()
        request, info = details_of(caught.value)
        assert request.field_violations[0].field == field
        assert (info.domain, info.reason) == ("headwaiter", "INVALID_ARGUMENT")
        assert host.metrics.codes == {(method, "INVALID_ARGUMENT"): 1}
        assert (await STUBS["Describe"](channel).Describe(models_pb2.DescribeRequest())).name == kind


async def test_methods_of_other_tasks_say_what_the_model_does(packages: Packages) -> None:
    async with serving(packages, "marian") as (channel, _):
        requests = {
            "Classify": classification_pb2.ClassifyRequest(),
            "Detect": detection_pb2.DetectRequest(),
            "Act": policy_pb2.ActRequest(),
            "Caption": captioning_pb2.CaptionRequest(),
            "Generate": generation_pb2.GenerateRequest(),
            "GenerateImages": generation_pb2.GenerateImagesRequest(),
        }
        for method, request in requests.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(STUBS[method](channel), method)(request)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            wanted = f"marian does translation: it has Describe, Translate, TranslateStream, not {method}"
            assert caught.value.details() == wanted
        stream = policy_pb2_grpc.PolicyStub(channel).Episode()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_describe_states_limits_and_defaults(packages: Packages) -> None:
    async with serving(packages, "marian", limits={"beams": 5}) as (channel, _):
        told = await models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        assert (told.task, told.family, told.precision, told.device) == ("translation", "marian", "fp32", "cpu")
        assert told.limits["beams"] == 5
        assert told.limits["source"] == packages("marian", "fp32").package.manifest.limits["source"]
        assert told.decoding.HasField("beams")
        assert told.limits["inputs"] == 256
        assert "pixels" not in told.limits
    async with serving(packages, "gpt2", rows=2, limits={"new_tokens": 10**6}) as (channel, host):
        told = await models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        bounds = host.model.task.bounds
        assert (told.limits["new_tokens"], told.limits["beams"]) == (bounds.new_tokens, bounds.beams) != (10**6, 8)
    async with serving(packages, "detr") as (channel, _):
        told = await models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        assert {"pixels", "wait_ms", "message_mb", "inputs"} <= set(told.limits)
        assert not {"beams", "new_tokens", "text", "images"} & set(told.limits)


async def test_keys(packages: Packages, tmp_path: Any) -> None:
    key = make_key()
    file = tmp_path / "keys"
    file.write_text(line_for("shop", key) + "\n")
    async with serving(packages, "bert", keys=file) as (channel, host):
        describe = models_pb2_grpc.ModelsStub(channel).Describe
        for metadata in ([], [("authorization", "Bearer hw_wrong")], [("authorization", key)]):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await describe(models_pb2.DescribeRequest(), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await describe(models_pb2.DescribeRequest(), metadata=[("authorization", f"Bearer {key}")])
        assert host.metrics.codes == {("Describe", "UNAUTHENTICATED"): 3, ("Describe", "OK"): 1}


async def test_a_deadline_and_a_cancelled_call_free_their_rows(packages: Packages) -> None:
    async with serving(packages, "gpt2", rows=2, limits={"wait_ms": 600_000}) as (channel, host):
        stub = generation_pb2_grpc.GenerationStub(channel)
        long = generation_pb2.GenerateRequest(
            prompt=["ab"] * 100, decoding=common_pb2.Decoding(max_new_tokens=60, beams=2)
        )
        call = stub.Generate(long)
        while not host.model.meters["rows_in_use"]:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(long, timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(long, metadata=[("x-timeout-ms", "30")])
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        for _ in range(1000):
            if not host.model.meters["rows_in_use"] and not host.model.meters["waiting"]:
                break
            await asyncio.sleep(0.01)
        assert host.model.meters["rows_in_use"] == 0
        short = generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY)
        assert (await stub.Generate(short)).results
        assert host.metrics.codes["Generate", "CANCELLED"] == 2
        assert host.metrics.codes["Generate", "DEADLINE_EXCEEDED"] == 1


async def test_long_histories_are_read_beside_the_event_loop(packages: Packages) -> None:
    async with serving(packages, "decision_transformer") as (channel, host):
        task, threads = host.model.task, set()
        act = task.act

        def watched(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.current_thread())
            return act(*args, **kwargs)

        task.act = watched
        state = [0.0] * task.policy.state_size
        moment = policy_pb2.Step(
            state=state, reward=0.0, action={"continuous": {"values": [0.0] * task.policy.action_size}}
        )
        for count in (1, task.timesteps):
            history = policy_pb2.History(target_return=1.0, steps=[moment] * count)
            found = await policy_pb2_grpc.PolicyStub(channel).Act(policy_pb2.ActRequest(history=[history] * 8))
            assert min(found.timing.queue_ms, found.timing.prepare_ms, found.timing.run_ms) > 0
            is_here = threading.current_thread() in threads
            assert is_here == (count == 1), f"{count} steps"
            threads.clear()


async def test_who_would_wait_too_long_is_refused_at_once(packages: Packages) -> None:
    async with serving(packages, "gpt2", rows=2, limits={"wait_ms": 20}) as (channel, host):
        stub = generation_pb2_grpc.GenerationStub(channel)
        long = generation_pb2.GenerateRequest(
            prompt=["ab"] * 200, decoding=common_pb2.Decoding(max_new_tokens=60, beams=1)
        )
        first = asyncio.ensure_future(_awaited(stub.Generate(long)))
        while not host.model.engine.estimated_wait():
            await asyncio.sleep(0.001)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "gpt2 is busy: the wait would be" in caught.value.details()
        assert len((await first).results) == 200
        await stub.Generate(generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY))


async def _awaited(call: Any) -> Any:
    return await call


async def test_health(packages: Packages) -> None:
    async with serving(packages, "bert") as (channel, host):
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "bert", "headwaiter.v1.Classification"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="gpt9"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        host.model.engine.close(drain=False)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=""))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        request = classification_pb2.ClassifyRequest(input=[classification_pb2.Input(text="ab")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await classification_pb2_grpc.ClassificationStub(channel).Classify(request)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
