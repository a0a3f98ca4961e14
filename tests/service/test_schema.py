"""Bodies as JSON and messages: what one says, the other says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from headwaiter.v1 import (
    captioning_pb2,
    classification_pb2,
    detection_pb2,
    generation_pb2,
    models_pb2,
    policy_pb2,
    translation_pb2,
)
from service.ingress.http.body import BodyReader
from service.ingress.http.comments import comment
from service.ingress.http.encoding import encode, json_of
from service.ingress.http.fields import inputs_of
from service.ingress.http.routes import ROUTES
from service.ingress.http.schema import message_type
from service.ingress.methods import METHODS
from service.tasks.errors import InputError

ACTION = {"continuous": [0.5, -1]}
GOOD: list[tuple[str, Any, Any]] = [
    ("Translate", {"text": "a"}, translation_pb2.TranslateRequest(text=["a"])),
    ("Translate", {"text": ["a", ""]}, translation_pb2.TranslateRequest(text=["a", ""])),
    (
        "Translate",
        {"text": "a", "split": False, "target_language": None, "decoding": {"beams": 4.0, "temperature": 1, "seed": 0}},
        translation_pb2.TranslateRequest(text=["a"], split=False, decoding={"beams": 4, "temperature": 1.0, "seed": 0}),
    ),
    ("Translate", {"text": "a", "decoding": {}}, translation_pb2.TranslateRequest(text=["a"], decoding={})),
    ("TranslateStream", {"text": "a"}, translation_pb2.TranslateStreamRequest(text="a")),
    ("TranslateStream", {"text": ["a"]}, translation_pb2.TranslateStreamRequest(text="a")),
    (
        "Caption",
        {"image": ["AAE=", ""], "prompt": "a dish"},
        captioning_pb2.CaptionRequest(image=[{"data": b"\0\1"}, {"data": b""}], prompt="a dish"),
    ),
    ("CaptionStream", {"image": "AAE="}, captioning_pb2.CaptionStreamRequest(image={"data": b"\0\1"})),
    ("Detect", {"image": "AAE=", "max_boxes": 3}, detection_pb2.DetectRequest(image=[{"data": b"\0\1"}], max_boxes=3)),
    ("Classify", {"image": "AAE="}, classification_pb2.ClassifyRequest(input=[{"image": {"data": b"\0\1"}}])),
    (
        "Classify",
        {"text": ["a", "b"], "top_k": 2, "threshold": 0},
        classification_pb2.ClassifyRequest(input=[{"text": "a"}, {"text": "b"}], top_k=2, threshold=0),
    ),
    (
        "Classify",
        {"text_pair": {"first": "a", "second": "b"}},
        classification_pb2.ClassifyRequest(input=[{"text_pair": {"first": "a", "second": "b"}}]),
    ),
    (
        "Act",
        {
            "history": {"steps": [{"state": [1, 2.5], "action": ACTION, "reward": 1}, {"state": [0, 0]}]},
            "seed": 2**63 - 1,
        },
        policy_pb2.ActRequest(
            history=[
                {
                    "steps": [
                        {"state": [1, 2.5], "action": {"continuous": {"values": [0.5, -1]}}, "reward": 1.0},
                        {"state": [0, 0]},
                    ]
                }
            ],
            seed=2**63 - 1,
        ),
    ),
    (
        "Act",
        {"history": [{"steps": [{"state": [], "action": {"discrete": 0}}], "target_return": -1.5}]},
        policy_pb2.ActRequest(history=[{"steps": [{"state": [], "action": {"discrete": 0}}], "target_return": -1.5}]),
    ),
    (
        "Act",
        {"history": {"steps": [{"state": [3.4028235e38, -3.4028235e38]}]}},
        policy_pb2.ActRequest(history=[{"steps": [{"state": [3.4028234663852886e38, -3.4028234663852886e38]}]}]),
    ),
    ("Generate", {"prompt": "a"}, generation_pb2.GenerateRequest(prompt=["a"])),
    ("GenerateImages", {}, generation_pb2.GenerateImagesRequest()),
    ("GenerateImages", {"count": 2}, generation_pb2.GenerateImagesRequest(count=2)),
]

STEP = {"state": [1], "action": {"discrete": 1, "continuous": [1]}}
BAD: list[tuple[str, Any, str, str]] = [
    ("Translate", {}, "text is missing", "text"),
    ("Translate", {"text": []}, "text is empty; it needs at least one", "text"),
    ("Translate", {"text": 5}, "text is 5; it must be text", "text"),
    ("Translate", {"text": None}, "text is null; it must be text", "text"),
    ("Translate", {"text": ["a", True]}, "text[1] is true; it must be text", "text[1]"),
    ("Translate", {"text": ["a", ["b"]]}, "text[1] is a list; it must be text", "text[1]"),
    ("Translate", {"text": {"a": 1}}, "text is an object; it must be text", "text"),
    ("Translate", {"texts": "a"}, "texts is not a field; text is", "texts"),
    (
        "Translate",
        {"soup": "a"},
        "soup is not a field; there are text, source_language, target_language, split, decoding",
        "soup",
    ),
    ("Translate", {"x" * 99: 1}, f"{'x' * 39}… is not a field; there are", f"{'x' * 39}…"),
    ("Translate", {"text": "a", "split": 1}, "split is 1; it must be true or false", "split"),
    ("Translate", {"text": "a", "split": "yes"}, 'split is "yes"; it must be true or false', "split"),
    ("Translate", {"text": "a", "decoding": 4}, "decoding is 4; it must be an object", "decoding"),
    (
        "Translate",
        {"text": "a", "decoding": {"beam": 4}},
        "decoding.beam is not a field; beams is",
        "decoding.beam",
    ),
    (
        "Translate",
        {"text": "a", "decoding": {"beams": "4"}},
        'decoding.beams is "4"; it must be a whole number',
        "decoding.beams",
    ),
    (
        "Translate",
        {"text": "a", "decoding": {"beams": 1.5}},
        "decoding.beams is 1.5; it must be a whole number",
        "decoding.beams",
    ),
    (
        "Translate",
        {"text": "a", "decoding": {"beams": 2**31}},
        "decoding.beams is 2147483648; it must be at most 2147483647",
        "decoding.beams",
    ),
    (
        "Translate",
        {"text": "a", "decoding": {"top_p": float("inf")}},
        "decoding.top_p is Infinity; it must be a finite number",
        "decoding.top_p",
    ),
    (
        "Translate",
        {"text": "a", "decoding": {"top_p": "most of it, but not all of it, if you know what"}},
        "decoding.top_p is text; it must be a number",
        "decoding.top_p",
    ),
    ("TranslateStream", {"text": ["a", "b"]}, "text has 2 inputs; a stream takes one", "text"),
    ("Caption", {"image": ["AAE=", "A"]}, "image[1] is not base64", "image[1]"),
    ("Caption", {"image": "data:image/png;base64,AAE="}, "image is not base64", "image"),
    ("Caption", {"image": "ÄÄ=="}, "image is not base64", "image"),
    ("Caption", {"image": {"data": "AAE="}}, "image is an object; it must be base64 text", "image"),
    ("Classify", {}, "image, text or text_pair is missing", "image"),
    ("Classify", {"text": "a", "image": ""}, "the body has image and text; keep one of them", ""),
    ("Classify", {"input": [{"text": "a"}]}, "input is not a field; there are image, text, text_pair", "input"),
    ("Classify", {"text_pair": {"first": "a"}}, "text_pair.second is missing", "text_pair.second"),
    (
        "Classify",
        {"text_pair": [{"first": "a", "second": "b"}, "c"]},
        'text_pair[1] is "c"; it must be an object',
        "text_pair[1]",
    ),
    ("Act", {"history": {}}, "history.steps is missing", "history.steps"),
    (
        "Act",
        {"history": [{"steps": [{"state": [1, "2"]}]}]},
        'history[0].steps[0].state[1] is "2"; it must be a number',
        "history[0].steps[0].state[1]",
    ),
    (
        "Act",
        {"history": {"steps": [{"state": [1e39]}]}},
        "history.steps[0].state[0] is 1e+39; it must be at most 3.4028235e+38",
        "history.steps[0].state[0]",
    ),
    (
        "Act",
        {"history": {"steps": [STEP]}},
        "history.steps[0].action has discrete and continuous; keep one of them",
        "history.steps[0].action",
    ),
    (
        "Act",
        {"history": {"steps": [{"state": [1], "aktion": 1}]}},
        "history.steps[0].aktion is not a field; action is",
        "history.steps[0].aktion",
    ),
    ("GenerateImages", {"count": None, "size": 5}, "size is not a field; there are count, seed", "size"),
    ("Generate", [], "the body is a list; it must be an object", ""),
    (
        "Generate",
        {"prompt": "a", "decoding": {"beams": 10**4000}},
        "decoding.beams is 1000000000000000",
        "decoding.beams",
    ),
]


def reader(method: str) -> BodyReader:
    return BodyReader(METHODS[method.removesuffix("Stream")], METHODS[method], 1)


@pytest.mark.parametrize(("method", "body", "message"), GOOD)
def test_a_body_is_the_message(method: str, body: Any, message: Any) -> None:
    assert reader(method).message(body) == message


@pytest.mark.parametrize(("method", "body", "sentence", "field"), BAD, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_sentence_about_one_field(method: str, body: Any, sentence: str, field: str) -> None:
    with pytest.raises(InputError) as caught:
        reader(method).message(body)
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 200
    assert caught.value.field == field


def test_answers_write_zeros_and_leave_out_what_is_not_known() -> None:
    told = models_pb2.DescribeResponse(name="a", limits={"b": 2**40, "a": 0}, action_size=0)
    assert json.loads(encode(told)) == {
        "name": "a",
        "task": "",
        "version": "",
        "family": "",
        "precision": "",
        "device": "",
        "limits": {"a": 0, "b": 2**40},
        "labels": [],
        "action_size": 0,
        "license": "",
        "source": "",
        "attribution": "",
    }
    scored = classification_pb2.ClassifyResponse(results=[{"labels": [{"score": float("nan")}]}])
    assert json.loads(encode(scored))["results"][0]["labels"][0]["score"] is None


def all_messages() -> list[Any]:
    found: dict[str, Any] = {}

    def visit(message: Any) -> None:
        if message.full_name not in found and not message.GetOptions().map_entry:
            found[message.full_name] = message
            for field in message.fields:
                if field.message_type is not None:
                    visit(field.message_type)

    for method in METHODS.values():
        visit(method.request.DESCRIPTOR)
        visit(method.response.DESCRIPTOR)
    return list(found.values())


def test_every_field_and_method_of_the_protocol_has_words() -> None:
    fields = [field.full_name for message in all_messages() for field in message.fields]
    methods = [f"{method.service}.{method.name}" for method in METHODS.values()]
    assert [name for name in (*fields, *methods) if not comment(name)] == []


FLOATS = {"allow_nan": False, "allow_infinity": False}
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(max_size=5),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=5),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(**FLOATS),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, **FLOATS),
}


@st.composite
def messages(draw: st.DrawFn, kind: Any, needed: str | None = None) -> Any:
    """Any message of the kind, in which the field that is needed is not empty."""
    values, descriptor = {}, kind.DESCRIPTOR
    chosen = {oneof.name: draw(st.sampled_from(list(oneof.fields))).name for oneof in descriptor.oneofs}
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if (oneof is not None and chosen[oneof.name] != field.name) or (field.has_presence and draw(st.booleans())):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values[field.name] = draw(st.dictionaries(st.text(max_size=3), SCALARS[FieldDescriptor.TYPE_INT64]))
            continue
        single = SCALARS.get(field.type)
        if single is None:
            single = messages(field.message_type._concrete_class)
        least = 1 if field.name == needed else 0
        values[field.name] = draw(st.lists(single, min_size=least, max_size=2) if field.is_repeated else single)
    return kind(**values)


@given(data=st.data(), method=st.sampled_from([each.method for each in ROUTES if each.method.name != "Classify"]))
def test_a_request_that_becomes_json_comes_back(data: st.DataObject, method: Any) -> None:
    inputs = inputs_of(method.request.DESCRIPTOR)
    request = data.draw(messages(method.request, inputs.name if inputs else None))
    assert BodyReader(method, method, 1).message(json.loads(encode(request))) == request


@given(
    data=st.data(), kind=st.sampled_from([*(route.method.response for route in ROUTES), models_pb2.DescribeResponse])
)
def test_an_answer_is_what_the_documentation_says(data: st.DataObject, kind: Any) -> None:
    answer = data.draw(messages(kind))
    assert kind(**TypeAdapter(message_type(kind.DESCRIPTOR)).validate_python(json_of(answer))) == answer
