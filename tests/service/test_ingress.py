"""Every method of every task over a real gRPC server in this process: the same answers as the engine in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
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
from loadtest.plain import listening
from service import open_model
from service.host import HostArgs, ModelHost
from service.keys import line_for, make_key
from service.tasks.policy import Moment
from tests.conftest import Packages
from tests.counts_kit import Counts
from tests.images_kit import noise


@asynccontextmanager
async def serving(packages: Packages, kind: str, **args: Any) -> AsyncIterator[tuple[grpc.aio.Channel, ModelHost]]:
    package = packages(kind, "fp32").package
    host = ModelHost(HostArgs(name=kind, folder=package.folder, threads=1, **args), Counts())
    try:
        async with listening(host) as address, grpc.aio.insecure_channel(address) as channel:
            yield channel, host
    finally:
        host.close()


def details_of(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.BadRequest, error_details_pb2.ErrorInfo]:
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    for each in status.details:
        each.Unpack(request)
        each.Unpack(info)
    assert status.code == error.code().value[0]
    return request, info


GREEDY = common_pb2.Decoding(beams=1, max_new_tokens=12)


async def test_translation(packages: Packages) -> None:
    with open_model(packages("marian", "fp32").package.folder, threads=1) as model:
        expected = model.translate(["ab cd. ef", ""], beams=2, best=2, max_new_tokens=12)
    async with serving(packages, "marian") as (channel, host):
        stub = translation_pb2_grpc.TranslationStub(channel)
        decoding = common_pb2.Decoding(beams=2, best=2, max_new_tokens=12)
        request = translation_pb2.TranslateRequest(text=["ab cd. ef", ""], decoding=decoding)
        call = stub.Translate(request, metadata=[("x-request-id", "mine")])
        response = await call
        assert [[h.text for h in r.hypotheses] for r in response.results] == [
            [h.text for h in words.hypotheses] for words in expected
        ]
        assert [s.score for s in response.results[0].sentences] == pytest.approx(
            [s.score for s in expected[0].sentences]
        )
        assert (response.model.name, response.model.version) == ("marian", "1")
        assert response.usage.output_tokens == sum(words.usage.output_tokens for words in expected)
        assert response.timing.run_ms > 0
        assert dict(await call.trailing_metadata())["x-request-id"] == "mine"
        assert host.metrics.codes == {("Translate", "OK"): 1}
        assert host.metrics.tokens["output"] == response.usage.output_tokens


@pytest.mark.parametrize(
    ("kind", "stub", "method", "request_"),
    [
        (
            "marian",
            translation_pb2_grpc.TranslationStub,
            "TranslateStream",
            translation_pb2.TranslateStreamRequest(text="ab cd. ef gh", decoding=GREEDY),
        ),
        (
            "gpt2",
            generation_pb2_grpc.GenerationStub,
            "GenerateStream",
            generation_pb2.GenerateStreamRequest(prompt="ab", decoding=GREEDY),
        ),
        (
            "caption-vit",
            captioning_pb2_grpc.CaptioningStub,
            "CaptionStream",
            captioning_pb2.CaptionStreamRequest(image=common_pb2.Image(data=noise(40, 40)), decoding=GREEDY),
        ),
    ],
)
async def test_streams_are_deltas_then_done(
    packages: Packages, kind: str, stub: Any, method: str, request_: Any
) -> None:
    async with serving(packages, kind) as (channel, host):
        events = [event async for event in getattr(stub(channel), method)(request_)]
        assert [event.WhichOneof("event") for event in events] == ["delta"] * (len(events) - 1) + ["done"]
        done = events[-1].done
        assert "".join(event.delta for event in events[:-1]) == done.text
        assert done.usage.output_tokens > 0
        assert done.model.name == kind
        assert host.metrics.codes == {(method, "OK"): 1}


async def test_generation_and_captioning(packages: Packages) -> None:
    with open_model(packages("gpt2", "fp32").package.folder, threads=1) as model:
        (expected,) = model.generate("ab", beams=1, max_new_tokens=12)
    async with serving(packages, "gpt2") as (channel, _):
        stub = generation_pb2_grpc.GenerationStub(channel)
        response = await stub.Generate(generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY))
        assert response.results[0].hypotheses[0].text == expected.text
    picture = noise(40, 30)
    with open_model(packages("caption-vit", "fp32").package.folder, threads=1) as model:
        (expected,) = model.caption(picture, beams=1, max_new_tokens=12)
    async with serving(packages, "caption-vit") as (channel, _):
        caption = captioning_pb2_grpc.CaptioningStub(channel).Caption
        answer = await caption(captioning_pb2.CaptionRequest(image=[common_pb2.Image(data=picture)], decoding=GREEDY))
        assert answer.results[0].hypotheses[0].text == expected.text
        assert answer.usage.images == 1


async def test_classification_of_texts_pairs_and_images(packages: Packages) -> None:
    with open_model(packages("bert", "fp32").package.folder, threads=1) as model:
        expected = model.classify(text=["ab cd", ("ab", "cd")], top_k=2)
    async with serving(packages, "bert") as (channel, _):
        stub = classification_pb2_grpc.ClassificationStub(channel)
        pair = classification_pb2.TextPair(first="ab", second="cd")
        inputs = [classification_pb2.Input(text="ab cd"), classification_pb2.Input(text_pair=pair)]
        response = await stub.Classify(classification_pb2.ClassifyRequest(input=inputs, top_k=2))
        got = [[(label.name, label.index) for label in result.labels] for result in response.results]
        assert got == [[(label.name, label.index) for label in labels] for labels in expected]
    picture = noise(50, 40)
    with open_model(packages("vit", "fp32").package.folder, threads=1) as model:
        (labels,) = model.classify(image=picture)
    async with serving(packages, "vit") as (channel, _):
        stub = classification_pb2_grpc.ClassificationStub(channel)
        image = classification_pb2.Input(image=common_pb2.Image(data=picture))
        response = await stub.Classify(classification_pb2.ClassifyRequest(input=[image]))
        assert [label.score for label in response.results[0].labels] == [label.score for label in labels]


async def test_detection(packages: Packages) -> None:
    picture = noise(64, 48)
    with open_model(packages("detr", "fp32").package.folder, threads=1) as model:
        (expected,) = model.detect(picture, threshold=0.0, max_boxes=3)
    async with serving(packages, "detr") as (channel, _):
        request = detection_pb2.DetectRequest(image=[common_pb2.Image(data=picture)], threshold=0.0, max_boxes=3)
        response = await detection_pb2_grpc.DetectionStub(channel).Detect(request)
        (result,) = response.results
        assert (result.width, result.height, len(result.boxes)) == (64, 48, 3)
        assert [box.x_min for box in result.boxes] == [box.x_min for box in expected.boxes]


def observation(rng: np.random.Generator, size: int, reward: float | None) -> policy_pb2.EpisodeRequest:
    seen = policy_pb2.Observation(state=rng.normal(size=size).tolist(), reward=reward)
    return policy_pb2.EpisodeRequest(observation=seen)


async def test_an_episode_acts_as_in_process_and_goes_on_after_a_break(packages: Packages) -> None:
    package = packages("decision_transformer", "fp32").package
    size = package.manifest.policy.state_size
    states = np.random.default_rng(3).normal(size=(5, size)).astype(np.float32)
    with open_model(package.folder, threads=1) as model:
        with model.episode(4.0) as episode:
            expected = [episode.step(state, None if i == 0 else 0.5).continuous for i, state in enumerate(states)]
        history = [Moment(state, expected[i], 0.5) for i, state in enumerate(states[:2])] + [Moment(states[2])]
        acted = model.act(history, 4.0).continuous
    async with serving(packages, "decision_transformer") as (channel, _):
        stub = policy_pb2_grpc.PolicyStub(channel)
        start = policy_pb2.Start(target_return=4.0)
        stream = stub.Episode()
        await stream.write(policy_pb2.EpisodeRequest(start=start))
        got = []
        for index, state in enumerate(states[:3]):
            seen = policy_pb2.Observation(state=state, reward=None if index == 0 else 0.5)
            await stream.write(policy_pb2.EpisodeRequest(observation=seen))
            got.append((await stream.read()).action)
        stream.cancel()
        resumed = stub.Episode()
        steps = [
            policy_pb2.Step(state=state, action=action, reward=0.5 if index < 2 else None)
            for index, (state, action) in enumerate(zip(states[:3], got, strict=True))
        ]
        await resumed.write(policy_pb2.EpisodeRequest(start=policy_pb2.Start(target_return=4.0, history=steps)))
        for state in states[3:]:
            seen = policy_pb2.Observation(state=state, reward=0.5)
            await resumed.write(policy_pb2.EpisodeRequest(observation=seen))
            got.append((await resumed.read()).action)
        await resumed.done_writing()
        assert await resumed.read() is grpc.aio.EOF
        np.testing.assert_allclose([list(a.continuous.values) for a in got], expected, atol=1e-5)
        past = [policy_pb2.Step(state=state, action=got[i], reward=0.5) for i, state in enumerate(states[:2])]
        whole = policy_pb2.History(steps=[*past, policy_pb2.Step(state=states[2])], target_return=4.0)
        response = await stub.Act(policy_pb2.ActRequest(history=[whole]))
        np.testing.assert_allclose(list(response.results[0].continuous.values), acted, atol=1e-5)


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
