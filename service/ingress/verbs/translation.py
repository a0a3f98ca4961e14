from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import translation_pb2 as pb
from service.ingress.calls import Call
from service.ingress.desk import Desk, account
from service.ingress.endpoint import Verbs
from service.ingress.verbs.words import decoding, hypotheses, streamed
from service.tasks.errors import InputError
from service.tasks.results import Words


def translation(desk: Desk, model: Any) -> Verbs:
    task = model.task

    async def translate(request: pb.TranslateRequest, call: Call) -> Message:
        _demand_languages(request, model.manifest.languages)
        how = decoding(request.decoding)
        split, deadline = _split(request), call.deadline
        submits = [
            partial(task.translate, text, how, split=split, deadline=deadline, field=f"text[{index}]")
            for index, text in enumerate(request.text)
        ]
        answers = await desk.answers("text", submits, characters=sum(map(len, request.text)))
        response = pb.TranslateResponse(results=[_result(each) for each in answers])
        return account(desk, call, response, answers)

    async def translate_stream(request: pb.TranslateStreamRequest, call: Call) -> AsyncGenerator[Message, None]:
        _demand_languages(request, model.manifest.languages)
        how = decoding(request.decoding)
        begin = partial(task.translate_stream, request.text, how, split=_split(request), deadline=call.deadline)
        async for event in streamed(desk, call, pb.TranslateStreamResponse, begin, characters=len(request.text)):
            yield event

    return {"Translate": translate, "TranslateStream": translate_stream}


def _split(request: pb.TranslateRequest | pb.TranslateStreamRequest) -> bool:
    return request.split if request.HasField("split") else True


def _result(words: Words) -> pb.TranslateResult:
    return pb.TranslateResult(hypotheses=hypotheses(words.hypotheses), sentences=hypotheses(words.sentences))


def _demand_languages(
    request: pb.TranslateRequest | pb.TranslateStreamRequest, languages: dict[str, str] | None
) -> None:
    """A model of one pair takes its own languages, or none stated."""
    for side, known in (languages or {}).items():
        field = f"{side}_language"
        given = getattr(request, field)
        if request.HasField(field) and given != known:
            raise InputError(f"{field} is {given!r}; this model has {known}", field=field)
