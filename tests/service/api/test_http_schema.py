"""Conversion between JSON bodies and protobuf messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from headwaiter.api.http.body import BodyReader
from headwaiter.api.http.encoding import encode, to_json_value
from headwaiter.api.http.fields import inputs_field
from headwaiter.api.http.proto_comments import comment
from headwaiter.api.http.routes import ROUTES
from headwaiter.api.http.schema import message_type
from headwaiter.api.methods import METHODS
from headwaiter.tasks.errors import InputError
from headwaiter.v1 import (
    captioning_pb2,
    classification_pb2,
    detection_pb2,
    generation_pb2,
    models_pb2,
    policy_pb2,
    translation_pb2,
)

ACTION = {"continuous": [0.5, -1]}
VALID: list[tuple[str, Any, Any]] = [
    ("Translate", {"text": "a"}, translation_pb2.TranslateRequest(text=["a"])),
    ("Translate", {"text": ["a", ""]}, translation_pb2.TranslateRequest(text=["a", ""])),
    (
        "Translate",
        {
            "text": "a",
            "split": False,
            "target_language": None,
            "decoding": {"num_beams": 4.0, "temperature": 1, "seed": 0},
        },
        translation_pb2.TranslateRequest(
            text=["a"], split=False, decoding={"num_beams": 4, "temperature": 1.0, "seed": 0}
        ),
    ),
    ("Translate", {"text": "a", "decoding": {}}, translation_pb2.TranslateRequest(text=["a"], decoding={})),
    ("TranslateStream", {"text": "a"}, translation_pb2.TranslateStreamRequest(text="a")),
    ("TranslateStream", {"text": ["a"]}, translation_pb2.TranslateStreamRequest(text="a")),
    (
        "Caption",
        {"image": ["AAE=", ""], "prompt": "a photo of"},
        captioning_pb2.CaptionRequest(image=[{"data": b"\0\1"}, {"data": b""}], prompt="a photo of"),
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

STEP_WITH_TWO_ACTIONS = {"state": [1], "action": {"discrete": 1, "continuous": [1]}}
LONG_TEXT = "most of it, but not all of it, if you know what"
INVALID: list[tuple[str, Any, str, list[str]]] = [
    ("Translate", {}, "text", ["missing"]),
    ("Translate", {"text": []}, "text", ["empty", "at least one"]),
    ("Translate", {"text": 5}, "text", ["is 5", "must be text"]),
    ("Translate", {"text": None}, "text", ["is null", "must be text"]),
    ("Translate", {"text": ["a", True]}, "text[1]", ["is true", "must be text"]),
    ("Translate", {"text": ["a", ["b"]]}, "text[1]", ["is a list", "must be text"]),
    ("Translate", {"text": {"a": 1}}, "text", ["is an object", "must be text"]),
    ("Translate", {"texts": "a"}, "texts", ["not a known field", "did you mean text?"]),
    (
        "Translate",
        {"unrelated": "a"},
        "unrelated",
        ["not a known field", "text, source_language, target_language, split, decoding"],
    ),
    ("Translate", {"x" * 99: 1}, f"{'x' * 39}…", ["not a known field"]),
    ("Translate", {"text": "a", "split": 1}, "split", ["is 1", "true or false"]),
    ("Translate", {"text": "a", "split": "yes"}, "split", ['is "yes"', "true or false"]),
    ("Translate", {"text": "a", "decoding": 4}, "decoding", ["is 4", "an object"]),
    ("Translate", {"text": "a", "decoding": {"beam": 4}}, "decoding.beam", ["not a known field", "num_beams"]),
    ("Translate", {"text": "a", "decoding": {"num_beams": "4"}}, "decoding.num_beams", ['is "4"', "an integer"]),
    ("Translate", {"text": "a", "decoding": {"num_beams": 1.5}}, "decoding.num_beams", ["is 1.5", "an integer"]),
    (
        "Translate",
        {"text": "a", "decoding": {"num_beams": 2**31}},
        "decoding.num_beams",
        ["is 2147483648", "at most 2147483647"],
    ),
    (
        "Translate",
        {"text": "a", "decoding": {"top_p": float("inf")}},
        "decoding.top_p",
        ["is Infinity", "a finite number"],
    ),
    ("Translate", {"text": "a", "decoding": {"top_p": LONG_TEXT}}, "decoding.top_p", ["is text", "a number"]),
    ("TranslateStream", {"text": ["a", "b"]}, "text", ["2 inputs", "1"]),
    ("Caption", {"image": ["AAE=", "A"]}, "image[1]", ["base64"]),
    ("Caption", {"image": "data:image/png;base64,AAE="}, "image", ["base64"]),
    ("Caption", {"image": "ÄÄ=="}, "image", ["base64"]),
    ("Caption", {"image": {"data": "AAE="}}, "image", ["is an object", "base64 text"]),
    ("Classify", {}, "image", ["image, text or text_pair is missing"]),
    ("Classify", {"text": "a", "image": ""}, "", ["image and text", "only one"]),
    ("Classify", {"input": [{"text": "a"}]}, "input", ["not a known field", "image, text, text_pair"]),
    ("Classify", {"text_pair": {"first": "a"}}, "text_pair.second", ["missing"]),
    ("Classify", {"text_pair": [{"first": "a", "second": "b"}, "c"]}, "text_pair[1]", ['is "c"', "an object"]),
    ("Act", {"history": {}}, "history.steps", ["missing"]),
    (
        "Act",
        {"history": [{"steps": [{"state": [1, "2"]}]}]},
        "history[0].steps[0].state[1]",
        ['is "2"', "a number"],
    ),
    (
        "Act",
        {"history": {"steps": [{"state": [1e39]}]}},
        "history.steps[0].state[0]",
        ["is 1e+39", "at most 3.4028235e+38"],
    ),
    (
        "Act",
        {"history": {"steps": [STEP_WITH_TWO_ACTIONS]}},
        "history.steps[0].action",
        ["discrete and continuous", "only one"],
    ),
    (
        "Act",
        {"history": {"steps": [{"state": [1], "aktion": 1}]}},
        "history.steps[0].aktion",
        ["not a known field", "did you mean action?"],
    ),
    ("GenerateImages", {"count": None, "size": 5}, "size", ["not a known field", "count, seed"]),
    ("Generate", [], "", ["the body is a list", "an object"]),
    (
        "Generate",
        {"prompt": "a", "decoding": {"num_beams": 10**4000}},
        "decoding.num_beams",
        ["is 1000000000000000"],
    ),
]
GOLDEN_MESSAGES = [
    ("Translate", {"text": "a", "split": 1}, "split is 1; it must be true or false"),
    ("Translate", {"texts": "a"}, "texts is not a known field; did you mean text?"),
    ("GenerateImages", {"size": 5}, "size is not a known field; known fields: count, seed"),
]


def reader(method: str) -> BodyReader:
    return BodyReader(METHODS[method.removesuffix("Stream")], METHODS[method], 1)


@pytest.mark.parametrize(("method", "body", "message"), VALID)
def test_valid_body_is_converted_to_message(method: str, body: Any, message: Any) -> None:
    assert reader(method).message(body) == message


@pytest.mark.parametrize(("method", "body", "field", "excerpts"), INVALID, ids=lambda value: str(value)[:40])
def test_invalid_body_is_rejected_with_field(method: str, body: Any, field: str, excerpts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        reader(method).message(body)
    message = str(caught.value)
    assert [excerpt for excerpt in (field, *excerpts) if excerpt not in message] == []
    assert len(message) < 200
    assert caught.value.field == field


@pytest.mark.parametrize(("method", "body", "message"), GOLDEN_MESSAGES)
def test_invalid_body_message_is_one_sentence(method: str, body: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        reader(method).message(body)
    assert str(caught.value) == message


def test_encode_includes_defaults_and_omits_unset_optional_fields() -> None:
    description = models_pb2.DescribeResponse(name="a", limits={"b": 2**40, "a": 0}, action_size=0)
    assert json.loads(encode(description)) == {
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


def test_encode_nan_becomes_null() -> None:
    response = classification_pb2.ClassifyResponse(results=[{"labels": [{"score": float("nan")}]}])
    assert json.loads(encode(response))["results"][0]["labels"][0]["score"] is None


def all_messages() -> list[Any]:
    descriptors: dict[str, Any] = {}

    def visit(message: Any) -> None:
        if message.full_name not in descriptors and not message.GetOptions().map_entry:
            descriptors[message.full_name] = message
            for field in message.fields:
                if field.message_type is not None:
                    visit(field.message_type)

    for method in METHODS.values():
        visit(method.request.DESCRIPTOR)
        visit(method.response.DESCRIPTOR)
    return list(descriptors.values())


def test_every_field_and_method_has_proto_comment() -> None:
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
def messages(draw: st.DrawFn, message_class: Any, required: str | None = None) -> Any:
    """Arbitrary messages in which the `required` field is not empty."""
    values, descriptor = {}, message_class.DESCRIPTOR
    selected = {oneof.name: draw(st.sampled_from(list(oneof.fields))).name for oneof in descriptor.oneofs}
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if (oneof is not None and selected[oneof.name] != field.name) or (field.has_presence and draw(st.booleans())):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values[field.name] = draw(st.dictionaries(st.text(max_size=3), SCALARS[FieldDescriptor.TYPE_INT64]))
            continue
        item = SCALARS.get(field.type)
        if item is None:
            item = messages(field.message_type._concrete_class)
        min_size = 1 if field.name == required else 0
        values[field.name] = draw(st.lists(item, min_size=min_size, max_size=2) if field.is_repeated else item)
    return message_class(**values)


@given(data=st.data(), method=st.sampled_from([route.method for route in ROUTES if route.method.name != "Classify"]))
def test_request_survives_json_round_trip(data: st.DataObject, method: Any) -> None:
    inputs = inputs_field(method.request.DESCRIPTOR)
    request = data.draw(messages(method.request, inputs.name if inputs else None))
    assert BodyReader(method, method, 1).message(json.loads(encode(request))) == request


@given(
    data=st.data(),
    message_class=st.sampled_from([*(route.method.response for route in ROUTES), models_pb2.DescribeResponse]),
)
def test_encoded_response_matches_schema(data: st.DataObject, message_class: Any) -> None:
    response = data.draw(messages(message_class))
    adapter = TypeAdapter(message_type(message_class.DESCRIPTOR))
    assert message_class(**adapter.validate_python(to_json_value(response))) == response
