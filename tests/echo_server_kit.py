"""A gRPC server of the Headwaiter protocol that echoes requests, rejects them or breaks streams as configured."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from headwaiter.v1 import captioning_pb2 as captioning
from headwaiter.v1 import captioning_pb2_grpc as captioning_grpc
from headwaiter.v1 import classification_pb2 as classification
from headwaiter.v1 import classification_pb2_grpc as classification_grpc
from headwaiter.v1 import common_pb2 as common
from headwaiter.v1 import detection_pb2 as detection
from headwaiter.v1 import detection_pb2_grpc as detection_grpc
from headwaiter.v1 import generation_pb2 as generation
from headwaiter.v1 import generation_pb2_grpc as generation_grpc
from headwaiter.v1 import models_pb2 as models
from headwaiter.v1 import models_pb2_grpc as models_grpc
from headwaiter.v1 import policy_pb2 as policy
from headwaiter.v1 import policy_pb2_grpc as policy_grpc
from headwaiter.v1 import translation_pb2 as translation
from headwaiter.v1 import translation_pb2_grpc as translation_grpc

_STALL_SECONDS = 60.0
_LOOP_TIMEOUT_SECONDS = 30.0

MODEL = common.Model(name="echo", version="3")
USAGE = common.Usage(input_tokens=5, output_tokens=7, images=1)
TIMING = common.Timing(queue_ms=0.5, prepare_ms=1.5, run_ms=2.5)
COMMON_FIELDS: dict[str, Any] = {"model": MODEL, "usage": USAGE, "timing": TIMING}


@dataclass(frozen=True)
class Rejection:
    code: grpc.StatusCode
    message: str = "rejected"
    details: tuple[Message, ...] = ()

    def trailers(self) -> tuple[tuple[str, bytes | str], ...]:
        if not self.details:
            return ()
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in self.details:
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        return (("grpc-status-details-bin", status.SerializeToString()), ("x-request-id", "server-request-id"))


def unavailable() -> Rejection:
    return Rejection(grpc.StatusCode.UNAVAILABLE, "draining")


def queue_full(retry_after: float | None) -> Rejection:
    info = error_details_pb2.ErrorInfo(reason="RESOURCE_EXHAUSTED", domain="headwaiter")
    if retry_after is None:
        return Rejection(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", (info,))
    delay = Duration()
    delay.FromNanoseconds(int(retry_after * 1e9))
    retry = error_details_pb2.RetryInfo(retry_delay=delay)
    return Rejection(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", (info, retry))


def invalid_argument(field_name: str, message: str, limit: str | None = None) -> Rejection:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field_name, description=message)
    metadata = {} if limit is None else {"limit": limit}
    info = error_details_pb2.ErrorInfo(reason="INVALID_ARGUMENT", domain="headwaiter", metadata=metadata)
    bad = error_details_pb2.BadRequest(field_violations=[violation])
    return Rejection(grpc.StatusCode.INVALID_ARGUMENT, message, (bad, info))


@dataclass
class EchoServer:
    """Requests and metadata that were received, and the faults to inject."""

    address: str = ""
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)  # how each stream ended: finished, closed or cancelled
    rejections: deque[Rejection] = field(default_factory=deque)  # for the next calls
    rejected_states: dict[float, Rejection] = field(default_factory=dict)  # by the first number of an observation
    breaks_after: deque[int] = field(default_factory=deque)  # number of events before the next streams break
    stalls: bool = False
    unanswered_calls: int = 0  # number of calls that get no response
    omits_done: bool = False

    async def receive(self, request: Any, context: Any) -> None:
        self.metadata.append(dict(context.invocation_metadata()))
        if request is not None:
            self.requests.append(request)
        if self.rejections:
            await self.reject(self.rejections.popleft(), context)
        self.unanswered_calls -= 1
        if self.stalls or self.unanswered_calls >= 0:
            await asyncio.sleep(_STALL_SECONDS)

    async def reject(self, rejection: Rejection, context: Any) -> None:
        context.set_trailing_metadata(rejection.trailers())
        await context.abort(rejection.code, rejection.message)

    async def Translate(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        results = [
            translation.TranslateResult(
                hypotheses=_ranked(text, request.decoding), sentences=_ranked(text, common.Decoding())
            )
            for text in request.text
        ]
        return translation.TranslateResponse(results=results, **COMMON_FIELDS)

    async def TranslateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for event in self.stream(request, context, request.text.upper(), translation.TranslateStreamResponse):
            yield event

    async def Caption(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        results = [
            captioning.CaptionResult(hypotheses=_ranked(f"{request.prompt}{len(image.data)} bytes", request.decoding))
            for image in request.image
        ]
        return captioning.CaptionResponse(results=results, **COMMON_FIELDS)

    async def CaptionStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        text = f"{request.prompt}{len(request.image.data)}"
        async for event in self.stream(request, context, text, captioning.CaptionStreamResponse):
            yield event

    async def Classify(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        results = [
            classification.ClassifyResult(
                labels=[classification.Label(name=str(item.WhichOneof("content")), index=1, score=0.75)]
            )
            for item in request.input
        ]
        return classification.ClassifyResponse(results=results, **COMMON_FIELDS)

    async def Detect(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        box = detection.Box(name="cat[1]", index=4, score=0.875, x_min=2, y_min=3, x_max=30, y_max=20)
        results = [detection.DetectResult(width=40, height=30, boxes=[box]) for _ in request.image]
        return detection.DetectResponse(results=results, **COMMON_FIELDS)

    async def Act(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        results = [policy.Action(discrete=len(history.steps), scores=[0.25, 0.75]) for history in request.history]
        return policy.ActResponse(results=results, **COMMON_FIELDS)

    async def Episode(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Respond with the number of steps so far, including replayed ones, as the action."""
        start = await anext(aiter(requests))
        await self.receive(start, context)
        step = len(start.start.history)
        remaining = self.breaks_after.popleft() if self.breaks_after else None
        try:
            async for request in requests:
                self.requests.append(request)
                if remaining == 0:
                    await self.reject(unavailable(), context)
                if request.observation.state[0] in self.rejected_states:
                    await self.reject(self.rejected_states[request.observation.state[0]], context)
                remaining = None if remaining is None else remaining - 1
                yield policy.EpisodeResponse(action=policy.Action(discrete=step), **COMMON_FIELDS)
                step += 1
            self.ended.append("closed")
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise

    async def Generate(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        results = [generation.GenerateResult(hypotheses=_ranked(prompt, request.decoding)) for prompt in request.prompt]
        return generation.GenerateResponse(results=results, **COMMON_FIELDS)

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for event in self.stream(request, context, request.prompt, generation.GenerateStreamResponse):
            yield event

    async def GenerateImages(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        images = [common.Image(data=bytes([index])) for index in range(request.count)]
        return generation.GenerateImagesResponse(images=images, **COMMON_FIELDS)

    async def ListModels(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        return models.ListModelsResponse(
            models=[models.ModelSummary(name="echo", task="translation", version="3", ready=True)]
        )

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self.receive(request, context)
        return models.DescribeResponse(
            name="echo",
            task="policy",
            version="3",
            limits={"text": 20_000},
            labels=["cat", "dog"],
            state_size=17,
            action_size=6,
            action_kind="continuous",
            decoding=common.Decoding(num_beams=4, early_stopping=False, length_penalty=0.5),
            license="MIT",
        )

    async def stream(self, request: Any, context: Any, text: str, event: Any) -> AsyncIterator[Any]:
        await self.receive(request, context)
        break_after = self.breaks_after.popleft() if self.breaks_after else None
        try:
            for count, letter in enumerate(text):
                if count == break_after:
                    await self.reject(unavailable(), context)
                yield event(delta=letter)
            if self.omits_done:
                return
            finish_reason = _finish_reason(request.decoding)
            yield event(done=common.Done(text=text, score=-0.5, finish_reason=finish_reason, **COMMON_FIELDS))
            self.ended.append("finished")
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise


def _ranked(text: str, decoding: common.Decoding) -> list[common.Hypothesis]:
    reason = _finish_reason(decoding)
    return [
        common.Hypothesis(text=f"{text}!" + "?" * rank, score=-0.25 * (rank + 1), finish_reason=reason)
        for rank in range(max(1, decoding.num_return_sequences))
    ]


def _finish_reason(decoding: common.Decoding) -> str:
    return "length" if decoding.HasField("max_new_tokens") else "stop"


_SERVICES = (
    translation_grpc.add_TranslationServicer_to_server,
    captioning_grpc.add_CaptioningServicer_to_server,
    classification_grpc.add_ClassificationServicer_to_server,
    detection_grpc.add_DetectionServicer_to_server,
    policy_grpc.add_PolicyServicer_to_server,
    generation_grpc.add_GenerationServicer_to_server,
    models_grpc.add_ModelsServicer_to_server,
)


@contextmanager
def run_server(server: EchoServer) -> Iterator[EchoServer]:
    """Run the server in a thread with its own event loop, so that sync clients can block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> grpc.aio.Server:
        grpc_server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", 64 * 2**20), ("grpc.so_reuseport", 0)]
        )
        for add_servicer in _SERVICES:
            add_servicer(server, grpc_server)
        server.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
        await grpc_server.start()
        return grpc_server

    grpc_server = asyncio.run_coroutine_threadsafe(start(), loop).result(_LOOP_TIMEOUT_SECONDS)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(grpc_server.stop(None), loop).result(_LOOP_TIMEOUT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LOOP_TIMEOUT_SECONDS)
        loop.close()
