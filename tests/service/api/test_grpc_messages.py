"""Messages of gRPC calls are counted before they are parsed."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter.api.grpc_messages import MAX_FIELDS, has_more_fields, parse_message
from headwaiter.api.methods import METHODS
from headwaiter.tasks.errors import InputError
from headwaiter.v1 import classification_pb2, translation_pb2

TRANSLATE = METHODS["Translate"]
HOSTILE_BYTES = 32 << 20
MAX_GROWTH_KB = 16 << 10


def test_parse_many_empty_strings_is_rejected_without_parsing() -> None:
    content = b"\x0a\x00" * (HOSTILE_BYTES // 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"more than 4,096 fields") as caught:
        parse_message(TRANSLATE, content)
    assert caught.value.limit == MAX_FIELDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KB


def test_parse_malformed_content_is_invalid() -> None:
    with pytest.raises(InputError, match="the message is not a valid TranslateRequest"):
        parse_message(TRANSLATE, b"\xff")


@pytest.mark.parametrize("size", [0, 1, 127, 128, 40_000])
def test_parse_message_within_limits_returns_it(size: int) -> None:
    message = translation_pb2.TranslateRequest(text=["a" * size] * 256, source_language="zh", split=True)
    assert parse_message(TRANSLATE, message.SerializeToString()) == message


@given(st.integers(1, 300), st.integers(0, 200), st.booleans())
def test_has_more_fields_counts_all_wire_types(count: int, size: int, has_options: bool) -> None:
    inputs = [classification_pb2.Input(text="a" * size)] * count
    options = {"threshold": 0.5, "top_k": 300} if has_options else {}
    content = classification_pb2.ClassifyRequest(input=inputs, **options).SerializeToString()
    fields = count + len(options)
    assert has_more_fields(content, fields - 1)
    assert not has_more_fields(content, fields)


@given(st.binary(max_size=400))
def test_has_more_fields_accepts_arbitrary_content(content: bytes) -> None:
    assert has_more_fields(content, 3) in (True, False)
