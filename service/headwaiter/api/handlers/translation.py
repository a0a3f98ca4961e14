from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import RequestExecutor, attach_total_usage
from headwaiter.api.handlers.text_generation import hypothesis_messages, parse_decoding, stream_text
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.results import GeneratedText
from headwaiter.v1 import translation_pb2 as pb


def translation(executor: RequestExecutor, model: Any) -> Handlers:
    task = model.task

    async def translate(request: pb.TranslateRequest, context: RequestContext) -> Message:
        _check_languages(request, model.manifest.languages)
        options = parse_decoding(request.decoding)
        split, deadline = _split(request), context.deadline
        submits = [
            partial(task.translate, text, options, split=split, deadline=deadline, field=f"text[{index}]")
            for index, text in enumerate(request.text)
        ]
        outputs = await executor.execute("text", submits, cost=sum(map(len, request.text)))
        response = pb.TranslateResponse(results=[_result(output) for output in outputs])
        return attach_total_usage(executor, context, response, outputs)

    async def translate_stream(
        request: pb.TranslateStreamRequest, context: RequestContext
    ) -> AsyncGenerator[Message, None]:
        _check_languages(request, model.manifest.languages)
        options = parse_decoding(request.decoding)
        begin = partial(task.translate_stream, request.text, options, split=_split(request), deadline=context.deadline)
        async for event in stream_text(executor, context, pb.TranslateStreamResponse, begin, cost=len(request.text)):
            yield event

    return {"Translate": translate, "TranslateStream": translate_stream}


def _split(request: pb.TranslateRequest | pb.TranslateStreamRequest) -> bool:
    return request.split if request.HasField("split") else True


def _result(generated: GeneratedText) -> pb.TranslateResult:
    return pb.TranslateResult(
        hypotheses=hypothesis_messages(generated.hypotheses), sentences=hypothesis_messages(generated.sentences)
    )


def _check_languages(
    request: pb.TranslateRequest | pb.TranslateStreamRequest, languages: dict[str, str] | None
) -> None:
    """Raise InputError if the request states a language other than the model's."""
    for side, supported in (languages or {}).items():
        field = f"{side}_language"
        language = getattr(request, field)
        if request.HasField(field) and language != supported:
            raise InputError(f"{field} is {language!r}; this model supports {supported!r}", field=field)
