"""Every method of every task over a real gRPC server in this process: the same answers as the engine in process."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

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
    policy_pb2,
    policy_pb2_grpc,
    translation_pb2,
    translation_pb2_grpc,
)
from service import open_model
from service.tasks.policy import Moment
from tests.conftest import Packages
from tests.images_kit import noise
from tests.service.ingress_kit import GREEDY, serving


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
