"""Multipart forms, with images as files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter.api.http.model import build_app
from headwaiter.v1 import captioning_pb2, classification_pb2
from tests.http_kit import FakeHandlers, error_of, events_of, http_server, post

CAT, LARGE = ("cat.png", b"\x89cat\r\n--x\r\n"), ("large.png", b"pixels " * 400_000)


@pytest.fixture(scope="module")
def fake_handlers() -> FakeHandlers:
    return FakeHandlers(always_succeed=True)


@pytest.fixture(scope="module")
def address(fake_handlers: FakeHandlers) -> Iterator[str]:
    with http_server(asyncio.run(build_app(fake_handlers.endpoint(), ready=lambda: True, message_mb=4))) as url:
        yield url


@pytest.mark.parametrize(
    ("path", "files", "fields", "expected"),
    [
        ("/caption", [("image", CAT)], {}, captioning_pb2.CaptionRequest(image=[{"data": CAT[1]}])),
        (
            "/caption",
            [("image", CAT), ("image", LARGE)],
            {"prompt": "5", "decoding.num_beams": "2", "decoding.do_sample": "true"},
            captioning_pb2.CaptionRequest(
                image=[{"data": CAT[1]}, {"data": LARGE[1]}],
                prompt="5",
                decoding={"num_beams": 2, "do_sample": True},
            ),
        ),
        (
            "/caption",
            [("image", CAT)],
            {"decoding": '{"num_beams": 2}'},
            captioning_pb2.CaptionRequest(image=[{"data": CAT[1]}], decoding={"num_beams": 2}),
        ),
        (
            "/classify",
            [("image", CAT)],
            {"top_k": "3", "threshold": "0.5"},
            classification_pb2.ClassifyRequest(input=[{"image": {"data": CAT[1]}}], top_k=3, threshold=0.5),
        ),
        (
            "/classify",
            [("top_k", (None, "3"))],
            {"text_pair.first": "a", "text_pair.second": "null"},
            classification_pb2.ClassifyRequest(input=[{"text_pair": {"first": "a", "second": "null"}}], top_k=3),
        ),
        (
            "/caption",
            [("image", (None, "AAE="))],
            {},
            captioning_pb2.CaptionRequest(image=[{"data": b"\0\1"}]),
        ),
    ],
)
def test_form_is_converted_to_message(
    address: str, fake_handlers: FakeHandlers, path: str, files: Any, fields: dict[str, str], expected: Any
) -> None:
    response = post(address + path, files=files, data=fields)
    assert response.status_code == 200, response.text
    assert fake_handlers.requests[-1] == expected


def test_form_with_events_accept_header_is_streamed(address: str, fake_handlers: FakeHandlers) -> None:
    response = post(f"{address}/caption", files={"image": CAT}, headers={"accept": "text/event-stream"})
    assert events_of(response)[-1][0] == "done"
    assert fake_handlers.requests[-1] == captioning_pb2.CaptionStreamRequest(image={"data": CAT[1]})


@pytest.mark.parametrize(
    ("files", "fields", "field", "excerpts"),
    [
        ([("prompt", (None, "a"))], {}, "image", ["missing"]),
        ([("picture", CAT)], {}, "picture", ["not a known field", "image, prompt, decoding"]),
        ([("image", CAT)], {"decoding.num_beams": "two"}, "decoding.num_beams", ['"two"', "integer"]),
        ([("image", CAT)], {"decoding": "two"}, "decoding", ['"two"', "object"]),
        ([("image", CAT)], {"decoding.unknown.nested": "1"}, "decoding.unknown", ["not a known field; "]),
        ([("image", CAT)], {"image.data": "1"}, "image.data", ["not a known field"]),
        (
            [("image", CAT)],
            {"decoding": '{"num_beams": 1}', "decoding.num_beams": "1"},
            "decoding.num_beams",
            ["twice"],
        ),
        ([("image", CAT), ("prompt", CAT)], {}, "prompt", ["a file", "text"]),
        ([("image", CAT), ("prompt", (None, "a")), ("prompt", (None, "b"))], {}, "prompt", ["twice"]),
        ([("image", CAT), ("image", (None, "?"))], {}, "image[1]", ["base64"]),
        ([("image", ("big", b"a" * (5 << 20)))], {}, "", ["5.0 MiB", "4 MiB"]),
        ([("image", CAT)], {"": "a"}, "", ["not a known field", "image, prompt, decoding"]),
    ],
)
def test_invalid_form_is_rejected_with_field(
    address: str, files: Any, fields: dict[str, str], field: str, excerpts: list[str]
) -> None:
    response = post(f"{address}/caption", files=files, data=fields)
    assert response.status_code == 400
    error = error_of(response)
    assert error["field"] == field
    assert [excerpt for excerpt in (field, *excerpts) if excerpt not in error["message"]] == []


HEAD = (
    b'--x\r\ncontent-disposition: form-data; name="image"\r\n\r\nAAE=\r\n'
    b'--x\r\ncontent-disposition: form-data; name="prompt"\r\n\r\n'
)


@pytest.mark.parametrize(
    ("content_type", "body", "excerpt"),
    [
        ("multipart/form-data", b"", "the form cannot be parsed: "),
        ("multipart/form-data; boundary=x", b"no form", "the form cannot be parsed: "),
        ("multipart/form-data; boundary=x", HEAD + b"a", "the form cannot be parsed: "),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\na\r\n--x--\r\n", "the form cannot be parsed: "),
        ("multipart/form-data; boundary=x; charset=utf-7", HEAD + b"\xed\xa0\x80\r\n--x--\r\n", "UTF-8"),
        ("multipart/form-data; boundary=x", (HEAD + b"\r\n") * 600 + b"--x--\r\n", "1,024"),
        (f"multipart/form-data; boundary={'x' * 300}", b"", "the form cannot be parsed: "),
    ],
)
def test_malformed_form_is_rejected(address: str, content_type: str, body: bytes, excerpt: str) -> None:
    response = post(f"{address}/caption", data=body, headers={"content-type": content_type})
    assert response.status_code == 400
    assert excerpt in error_of(response)["message"]


@settings(max_examples=100, deadline=None)
@given(
    body=st.binary(max_size=40), charset=st.sampled_from(["", "utf-8", "utf-16", "utf-7", "punycode", "rot13", "\0"])
)
def test_arbitrary_form_never_causes_server_error(address: str, body: bytes, charset: str) -> None:
    headers = {"content-type": f"multipart/form-data; boundary=x; charset={charset}".replace("\0", "zero")}
    response = post(f"{address}/caption", data=HEAD + body + b"\r\n--x--\r\n", headers=headers)
    assert response.status_code in (200, 400), response.text
