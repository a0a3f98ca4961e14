"""Every method of every task over a real gRPC server returns the same results as the in-process model."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from headwaiter import open_model
from headwaiter.tasks.policy import HistoryStep
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
from tests.conftest import Packages
from tests.images_kit import random_png
from tests.model_server_kit import GREEDY, serving


async def test_translate_returns_in_process_result(packages: Packages) -> None:
    with open_model(packages("marian", "fp32").package.folder, threads=1) as model:
        expected = model.translate(["ab cd. ef", ""], num_beams=2, num_return_sequences=2, max_new_tokens=12)
    async with serving(packages, "marian") as (channel, model_server):
        stub = translation_pb2_grpc.TranslationStub(channel)
        decoding = common_pb2.Decoding(num_beams=2, num_return_sequences=2, max_new_tokens=12)
        request = translation_pb2.TranslateRequest(text=["ab cd. ef", ""], decoding=decoding)
        call = stub.Translate(request, metadata=[("x-request-id", "mine")])
        response = await call
        assert [[hypothesis.text for hypothesis in result.hypotheses] for result in response.results] == [
            [hypothesis.text for hypothesis in generated.hypotheses] for generated in expected
        ]
        assert [result.hypotheses[0].finish_reason for result in response.results] == ["length", "stop"]
        assert [sentence.score for sentence in response.results[0].sentences] == pytest.approx(
            [sentence.score for sentence in expected[0].sentences]
        )
        assert (response.model.name, response.model.version) == ("marian", "1")
        assert response.usage.output_tokens == sum(generated.usage.output_tokens for generated in expected)
        assert response.timing.run_ms > 0
        assert dict(await call.trailing_metadata())["x-request-id"] == "mine"
        assert model_server.metrics.codes == {("Translate", "OK"): 1}
        assert model_server.metrics.tokens["output"] == response.usage.output_tokens


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
            captioning_pb2.CaptionStreamRequest(image=common_pb2.Image(data=random_png(40, 40)), decoding=GREEDY),
        ),
    ],
)
async def test_stream_sends_deltas_then_done(
    packages: Packages, kind: str, stub: Any, method: str, request_: Any
) -> None:
    async with serving(packages, kind) as (channel, model_server):
        events = [event async for event in getattr(stub(channel), method)(request_)]
        assert [event.WhichOneof("event") for event in events] == ["delta"] * (len(events) - 1) + ["done"]
        done = events[-1].done
        assert "".join(event.delta for event in events[:-1]) == done.text
        assert done.usage.output_tokens > 0
        assert done.finish_reason == "length"
        assert done.model.name == kind
        assert model_server.metrics.codes == {(method, "OK"): 1}


async def test_generate_returns_in_process_result(packages: Packages) -> None:
    with open_model(packages("gpt2", "fp32").package.folder, threads=1) as model:
        (expected,) = model.generate("ab", num_beams=1, max_new_tokens=12)
    async with serving(packages, "gpt2") as (channel, _):
        stub = generation_pb2_grpc.GenerationStub(channel)
        response = await stub.Generate(generation_pb2.GenerateRequest(prompt=["ab"], decoding=GREEDY))
        assert response.results[0].hypotheses[0].text == expected.text


async def test_caption_returns_in_process_result(packages: Packages) -> None:
    image_bytes = random_png(40, 30)
    with open_model(packages("caption-vit", "fp32").package.folder, threads=1) as model:
        (expected,) = model.caption(image_bytes, num_beams=1, max_new_tokens=12)
    async with serving(packages, "caption-vit") as (channel, _):
        request = captioning_pb2.CaptionRequest(image=[common_pb2.Image(data=image_bytes)], decoding=GREEDY)
        response = await captioning_pb2_grpc.CaptioningStub(channel).Caption(request)
        assert response.results[0].hypotheses[0].text == expected.text
        assert response.usage.images == 1


async def test_classify_texts_and_pairs_returns_in_process_result(packages: Packages) -> None:
    with open_model(packages("bert", "fp32").package.folder, threads=1) as model:
        expected = model.classify(text=["ab cd", ("ab", "cd")], top_k=2)
    async with serving(packages, "bert") as (channel, _):
        stub = classification_pb2_grpc.ClassificationStub(channel)
        pair = classification_pb2.TextPair(first="ab", second="cd")
        inputs = [classification_pb2.Input(text="ab cd"), classification_pb2.Input(text_pair=pair)]
        response = await stub.Classify(classification_pb2.ClassifyRequest(input=inputs, top_k=2))
        actual = [[(label.name, label.index) for label in result.labels] for result in response.results]
        assert actual == [[(label.name, label.index) for label in labels] for labels in expected]


async def test_classify_image_returns_in_process_result(packages: Packages) -> None:
    image_bytes = random_png(50, 40)
    with open_model(packages("vit", "fp32").package.folder, threads=1) as model:
        (labels,) = model.classify(image=image_bytes)
    async with serving(packages, "vit") as (channel, _):
        stub = classification_pb2_grpc.ClassificationStub(channel)
        image = classification_pb2.Input(image=common_pb2.Image(data=image_bytes))
        response = await stub.Classify(classification_pb2.ClassifyRequest(input=[image]))
        assert [label.score for label in response.results[0].labels] == [label.score for label in labels]


async def test_detect_returns_in_process_result(packages: Packages) -> None:
    image_bytes = random_png(64, 48)
    with open_model(packages("detr", "fp32").package.folder, threads=1) as model:
        (expected,) = model.detect(image_bytes, threshold=0.0, max_boxes=3)
    async with serving(packages, "detr") as (channel, _):
        request = detection_pb2.DetectRequest(image=[common_pb2.Image(data=image_bytes)], threshold=0.0, max_boxes=3)
        response = await detection_pb2_grpc.DetectionStub(channel).Detect(request)
        (result,) = response.results
        assert (result.width, result.height, len(result.boxes)) == (64, 48, 3)
        assert [box.x_min for box in result.boxes] == [box.x_min for box in expected.boxes]


def observation(state: Any, reward: float | None) -> policy_pb2.EpisodeRequest:
    return policy_pb2.EpisodeRequest(observation=policy_pb2.Observation(state=state, reward=reward))


async def test_episode_resumed_after_interruption_returns_in_process_actions(packages: Packages) -> None:
    package = packages("decision_transformer", "fp32").package
    size = package.manifest.policy.state_size
    states = np.random.default_rng(3).normal(size=(5, size)).astype(np.float32)
    with open_model(package.folder, threads=1) as model:
        with model.episode(4.0) as episode:
            expected = [episode.step(state, None if i == 0 else 0.5).continuous for i, state in enumerate(states)]
        history = [HistoryStep(state, expected[i], 0.5) for i, state in enumerate(states[:2])] + [
            HistoryStep(states[2])
        ]
        expected_next_action = model.act(history, 4.0).continuous
    async with serving(packages, "decision_transformer") as (channel, _):
        stub = policy_pb2_grpc.PolicyStub(channel)
        start = policy_pb2.Start(target_return=4.0)
        stream = stub.Episode()
        await stream.write(policy_pb2.EpisodeRequest(start=start))
        actions = []
        for index, state in enumerate(states[:3]):
            await stream.write(observation(state, reward=None if index == 0 else 0.5))
            actions.append((await stream.read()).action)
        stream.cancel()
        resumed = stub.Episode()
        steps = [
            policy_pb2.Step(state=state, action=action, reward=0.5 if index < 2 else None)
            for index, (state, action) in enumerate(zip(states[:3], actions, strict=True))
        ]
        await resumed.write(policy_pb2.EpisodeRequest(start=policy_pb2.Start(target_return=4.0, history=steps)))
        for state in states[3:]:
            await resumed.write(observation(state, reward=0.5))
            actions.append((await resumed.read()).action)
        await resumed.done_writing()
        assert await resumed.read() is grpc.aio.EOF
        np.testing.assert_allclose([list(action.continuous.values) for action in actions], expected, atol=1e-5)
        past = [policy_pb2.Step(state=state, action=actions[i], reward=0.5) for i, state in enumerate(states[:2])]
        act_history = policy_pb2.History(steps=[*past, policy_pb2.Step(state=states[2])], target_return=4.0)
        response = await stub.Act(policy_pb2.ActRequest(history=[act_history]))
        next_action = list(response.results[0].continuous.values)
        np.testing.assert_allclose(next_action, expected_next_action, atol=1e-5)
