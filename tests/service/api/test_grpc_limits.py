"""Limits and errors over gRPC: invalid input, unsupported methods, keys, deadlines, overload and health."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter.api.keys import format_key_line, make_key
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
from tests.conftest import Packages
from tests.model_server_kit import GREEDY, details_of, serving

INVALID = [
    ("marian", "Translate", translation_pb2.TranslateRequest(), "text", 1, "empty"),
    ("marian", "Translate", translation_pb2.TranslateRequest(text=["a", "b" * 501]), "text[1]", 500, "501 characters"),
    (
        "marian",
        "Translate",
        translation_pb2.TranslateRequest(text=["a"], decoding=common_pb2.Decoding(num_beams=0)),
        "decoding.num_beams",
        1,
        "at least 1",
    ),
    ("marian", "Translate", translation_pb2.TranslateRequest(text=["a"] * 257), "text", 256, "257 inputs"),
    ("marian", "Translate", translation_pb2.TranslateRequest(text=["a" * 100] * 256 * 60), "", 1, "1.5 MiB"),
    (
        "bert",
        "Classify",
        classification_pb2.ClassifyRequest(input=[classification_pb2.Input()]),
        "input[0]",
        None,
        "empty",
    ),
    (
        "bert",
        "Classify",
        classification_pb2.ClassifyRequest(input=[{"image": {"data": b"x"}}]),
        "input[0].image",
        None,
        "classifies texts",
    ),
    (
        "bert",
        "Classify",
        classification_pb2.ClassifyRequest(input=[{"text": "a"}, {"text_pair": {"first": "b", "second": "c" * 501}}]),
        "input[1].text_pair",
        500,
        "501 characters",
    ),
    (
        "detr",
        "Detect",
        detection_pb2.DetectRequest(image=[{"data": b"not an image file"}]),
        "image[0]",
        None,
        "image[0] is not an image",
    ),
    (
        "decision_transformer",
        "Act",
        policy_pb2.ActRequest(history=[policy_pb2.History(target_return=1.0, steps=[{"state": [1.0]}])]),
        "history[0].steps[0].state",
        5,
        "history[0].steps[0].state has 1 ",
    ),
    (
        "decision_transformer",
        "Act",
        policy_pb2.ActRequest(history=[policy_pb2.History(target_return=1.0)]),
        "history[0]",
        None,
        "history[0] is empty",
    ),
    (
        "decision_transformer",
        "Act",
        policy_pb2.ActRequest(history=[{"steps": [{"state": [1.0]}]}]),
        "history[0].target_return",
        None,
        "missing",
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


@pytest.mark.parametrize(("kind", "method", "request_", "field", "limit", "excerpt"), INVALID)
async def test_invalid_input_is_rejected_with_field_and_server_keeps_serving(
    packages: Packages, kind: str, method: str, request_: Any, field: str, limit: int | None, excerpt: str
) -> None:
    async with serving(packages, kind, limits={"text": 500, "message_mb": 1}) as (channel, model_server):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(STUBS[method](channel), method)(request_)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert excerpt in caught.value.details()
        bad_request, info = details_of(caught.value)
        assert bad_request.field_violations[0].field == field
        assert (info.domain, info.reason) == ("headwaiter", "INVALID_ARGUMENT")
        assert info.metadata.get("limit") == (None if limit is None else str(limit))
        assert model_server.metrics.codes == {(method, "INVALID_ARGUMENT"): 1}
        assert (await STUBS["Describe"](channel).Describe(models_pb2.DescribeRequest())).name == kind


async def test_method_of_other_task_is_rejected_with_supported_methods(packages: Packages) -> None:
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
            assert caught.value.details() == (
                f"marian (task: translation) does not support {method}; "
                "it supports Describe, Translate, TranslateStream"
            )
        stream = policy_pb2_grpc.PolicyStub(channel).Episode()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_describe_returns_enforced_limits_and_defaults(packages: Packages) -> None:
    async with serving(packages, "marian", limits={"num_beams": 5}) as (channel, _):
        description = await models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        assert (description.task, description.family) == ("translation", "marian")
        assert (description.precision, description.device) == ("fp32", "cpu")
        assert description.limits["num_beams"] == 5
        assert description.limits["source"] == packages("marian", "fp32").package.manifest.limits["source"]
        assert description.decoding.HasField("num_beams")
        assert description.limits["inputs"] == 256
        assert "pixels" not in description.limits
    async with serving(packages, "gpt2", max_sequences=2, limits={"new_tokens": 10**6}) as (channel, model_server):
        description = await models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        enforced = model_server.model.task.decoding_limits
        limits = (description.limits["new_tokens"], description.limits["num_beams"])
        assert limits == (enforced.new_tokens, enforced.num_beams)
        assert limits != (10**6, 8)
    async with serving(packages, "detr") as (channel, _):
        description = await models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest())
        assert {"pixels", "max_queue_wait_ms", "message_mb", "inputs"} <= set(description.limits)
        assert not {"num_beams", "new_tokens", "text", "images"} & set(description.limits)


async def test_missing_or_invalid_api_key_is_rejected(packages: Packages, tmp_path: Any) -> None:
    key = make_key()
    file = tmp_path / "keys"
    file.write_text(format_key_line("client", key) + "\n")
    async with serving(packages, "bert", keys=file) as (channel, model_server):
        describe = models_pb2_grpc.ModelsStub(channel).Describe
        for metadata in ([], [("authorization", "Bearer hw_wrong")], [("authorization", key)]):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await describe(models_pb2.DescribeRequest(), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await describe(models_pb2.DescribeRequest(), metadata=[("authorization", f"Bearer {key}")])
        assert model_server.metrics.codes == {("Describe", "UNAUTHENTICATED"): 3, ("Describe", "OK"): 1}


async def test_expired_and_cancelled_requests_release_slots(packages: Packages) -> None:
    async with serving(packages, "gpt2", max_sequences=2, limits={"max_queue_wait_ms": 600_000}) as (
        channel,
        model_server,
    ):
        stub = generation_pb2_grpc.GenerationStub(channel)
        long = generation_pb2.GenerateRequest(
            prompt=["ab"] * 100, decoding=common_pb2.Decoding(max_new_tokens=60, num_beams=2)
        )
        call = stub.Generate(long)
        while not model_server.model.counters["slots_in_use"]:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(long, timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(long, metadata=[("x-timeout-ms", "30")])
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        for _ in range(1000):
            if not model_server.model.counters["slots_in_use"] and not model_server.model.counters["waiting"]:
                break
            await asyncio.sleep(0.01)
        assert model_server.model.counters["slots_in_use"] == 0
        short = generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY)
        assert (await stub.Generate(short)).results
        assert model_server.metrics.codes["Generate", "CANCELLED"] == 2
        assert model_server.metrics.codes["Generate", "DEADLINE_EXCEEDED"] == 1


async def test_long_histories_are_preprocessed_off_the_event_loop(packages: Packages) -> None:
    async with serving(packages, "decision_transformer") as (channel, model_server):
        task, threads = model_server.model.task, set()
        act = task.act

        def act_and_record_thread(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.current_thread())
            return act(*args, **kwargs)

        task.act = act_and_record_thread
        state = [0.0] * task.policy.state_size
        step = policy_pb2.Step(
            state=state, reward=0.0, action={"continuous": {"values": [0.0] * task.policy.action_size}}
        )
        for count in (1, task.timesteps):
            history = policy_pb2.History(target_return=1.0, steps=[step] * count)
            response = await policy_pb2_grpc.PolicyStub(channel).Act(policy_pb2.ActRequest(history=[history] * 8))
            assert min(response.timing.queue_ms, response.timing.prepare_ms, response.timing.run_ms) > 0
            is_on_event_loop = threading.current_thread() in threads
            assert is_on_event_loop == (count == 1), f"{count} steps"
            threads.clear()


async def test_overloaded_model_rejects_request_immediately(packages: Packages) -> None:
    async with serving(packages, "gpt2", max_sequences=2, limits={"max_queue_wait_ms": 20}) as (channel, model_server):
        stub = generation_pb2_grpc.GenerationStub(channel)
        request = generation_pb2.GenerateRequest(
            prompt=["ab"] * 2, decoding=common_pb2.Decoding(max_new_tokens=60, num_beams=1)
        )
        # Enough work for a fast machine to observe its throughput under backlog.
        calls = [asyncio.ensure_future(_await_call(stub.Generate(request))) for _ in range(500)]
        queue = model_server.model.engine.queue
        while (wait := queue.estimated_wait()) is None or not wait.seconds:
            assert not all(call.done() for call in calls)
            await asyncio.sleep(0.001)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "gpt2 is overloaded: the estimated wait is" in caught.value.details()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        rejected = [outcome for outcome in outcomes if isinstance(outcome, grpc.aio.AioRpcError)]  # arrived last
        assert {error.code() for error in rejected} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        answered = [len(outcome.results) for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert answered == [2] * (len(calls) - len(rejected)) != []
        await stub.Generate(generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY))


async def test_request_beside_long_ones_is_accepted(packages: Packages) -> None:
    """The jobs of requests that came earlier do not count if they come later in the fair order of the queue."""
    async with serving(packages, "gpt2", max_sequences=2, limits={"max_queue_wait_ms": 20}) as (channel, model_server):
        stub = generation_pb2_grpc.GenerationStub(channel)
        long = generation_pb2.GenerateRequest(
            prompt=["ab"] * 250, decoding=common_pb2.Decoding(max_new_tokens=60, num_beams=1)
        )
        calls = [asyncio.ensure_future(_await_call(stub.Generate(long))) for _ in range(2)]
        queue = model_server.model.engine.queue
        while (backlog := queue.backlog_seconds()) is None or backlog < 0.1:
            assert not all(call.done() for call in calls)
            await asyncio.sleep(0.001)
        await stub.Generate(generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY))
        assert not any(call.done() for call in calls), "it was answered before those that came earlier"
        assert [len(response.results) for response in await asyncio.gather(*calls)] == [250, 250]


async def test_more_sentences_than_the_queue_holds_are_an_invalid_argument(packages: Packages) -> None:
    async with serving(packages, "marian") as (channel, model_server):
        stub = translation_pb2_grpc.TranslationStub(channel)
        text = "你好。" * 40
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Translate(translation_pb2.TranslateRequest(text=[text] * 256))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "sentences; the limit is 4,096: send it in parts" in caught.value.details()
        await stub.Translate(translation_pb2.TranslateRequest(text=["a"]))
        assert model_server.model.counters["slots_in_use"] == 0


async def _await_call(call: Any) -> Any:
    return await call


async def test_health_service_reports_status_by_name(packages: Packages) -> None:
    async with serving(packages, "bert") as (channel, model_server):
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "bert", "headwaiter.v1.Classification"):
            response = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="unknown"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        model_server.model.engine.close(drain=False)
        response = await stub.Check(health_pb2.HealthCheckRequest(service=""))
        assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
        request = classification_pb2.ClassifyRequest(input=[classification_pb2.Input(text="ab")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await classification_pb2_grpc.ClassificationStub(channel).Classify(request)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
