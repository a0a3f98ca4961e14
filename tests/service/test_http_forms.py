"""Images as files of a form."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter.v1 import captioning_pb2, classification_pb2
from service.ingress.http.model import build_app
from tests.http_kit import Kitchen, error_of, events_of, listening

SOUP, NOODLES = ("soup.png", b"\x89soup\r\n--x\r\n"), ("noodles.png", b"noodles" * 400_000)


@pytest.fixture(scope="module")
def kitchen() -> Kitchen:
    return Kitchen(calm=True)


@pytest.fixture(scope="module")
def address(kitchen: Kitchen) -> Iterator[str]:
    with listening(asyncio.run(build_app(kitchen.endpoint(), ready=lambda: True, message_mb=4))) as found:
        yield found


@pytest.mark.parametrize(
    ("path", "files", "fields", "expected"),
    [
        ("/caption", [("image", SOUP)], {}, captioning_pb2.CaptionRequest(image=[{"data": SOUP[1]}])),
        (
            "/caption",
            [("image", SOUP), ("image", NOODLES)],
            {"prompt": "5", "decoding.beams": "2", "decoding.sample": "true"},
            captioning_pb2.CaptionRequest(
                image=[{"data": SOUP[1]}, {"data": NOODLES[1]}], prompt="5", decoding={"beams": 2, "sample": True}
            ),
        ),
        (
            "/caption",
            [("image", SOUP)],
            {"decoding": '{"beams": 2}'},
            captioning_pb2.CaptionRequest(image=[{"data": SOUP[1]}], decoding={"beams": 2}),
        ),
        (
            "/classify",
            [("image", SOUP)],
            {"top_k": "3", "threshold": "0.5"},
            classification_pb2.ClassifyRequest(input=[{"image": {"data": SOUP[1]}}], top_k=3, threshold=0.5),
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
def test_a_form_is_the_message(
    address: str, kitchen: Kitchen, path: str, files: Any, fields: dict[str, str], expected: Any
) -> None:
    response = requests.post(address + path, files=files, data=fields)
    assert response.status_code == 200, response.text
    assert kitchen.asked[-1] == expected


def test_a_form_can_ask_for_a_stream(address: str, kitchen: Kitchen) -> None:
    response = requests.post(f"{address}/caption", files={"image": SOUP}, headers={"accept": "text/event-stream"})
    assert events_of(response)[-1][0] == "done"
    assert kitchen.asked[-1] == captioning_pb2.CaptionStreamRequest(image={"data": SOUP[1]})


@pytest.mark.parametrize(
    ("files", "fields", "sentence", "field"),
    [
        ([("prompt", (None, "a"))], {}, "image is missing", "image"),
        ([("picture", SOUP)], {}, "picture is not a field; there are image, prompt, decoding", "picture"),
        ([("image", SOUP)], {"decoding.beams": "two"}, 'decoding.beams is "two"; it must be a', "decoding.beams"),
        ([("image", SOUP)], {"decoding": "two"}, 'decoding is "two"; it must be an object', "decoding"),
        ([("image", SOUP)], {"decoding.soup.hot": "1"}, "decoding.soup is not a field; ", "decoding.soup"),
        ([("image", SOUP)], {"image.data": "1"}, "image.data is not a field", "image.data"),
        (
            [("image", SOUP)],
            {"decoding": '{"beams": 1}', "decoding.beams": "1"},
            "decoding.beams is there t",
            "decoding.beams",
        ),
        ([("image", SOUP), ("prompt", SOUP)], {}, "prompt is a file; it must be text", "prompt"),
        ([("image", SOUP), ("prompt", (None, "a")), ("prompt", (None, "b"))], {}, "prompt is there twice", "prompt"),
        ([("image", SOUP), ("image", (None, "?"))], {}, "image[1] is not base64", "image[1]"),
        ([("image", ("big", b"a" * (5 << 20)))], {}, "the request has 5.0 MB; the limit is 4 MB", ""),
        ([("image", SOUP)], {"": "a"}, " is not a field; there are image, prompt, decoding", ""),
    ],
)
def test_mistakes_in_forms(address: str, files: Any, fields: dict[str, str], sentence: str, field: str) -> None:
    response = requests.post(f"{address}/caption", files=files, data=fields)
    assert response.status_code == 400
    error = error_of(response)
    assert error["message"].startswith(sentence)
    assert error["field"] == field


HEAD = (
    b'--x\r\ncontent-disposition: form-data; name="image"\r\n\r\nAAE=\r\n'
    b'--x\r\ncontent-disposition: form-data; name="prompt"\r\n\r\n'
)


@pytest.mark.parametrize(
    ("content_type", "body", "sentence"),
    [
        ("multipart/form-data", b"", "the form cannot be read: "),
        ("multipart/form-data; boundary=x", b"no form", "the form cannot be read: "),
        ("multipart/form-data; boundary=x", HEAD + b"a", "the form cannot be read: "),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\na\r\n--x--\r\n", "the form cannot be read: "),
        (
            "multipart/form-data; boundary=x; charset=utf-7",
            HEAD + b"\xed\xa0\x80\r\n--x--\r\n",
            "prompt is not text in UTF-8",
        ),
        (
            "multipart/form-data; boundary=x",
            (HEAD + b"\r\n") * 600 + b"--x--\r\n",
            "the form has more than 1,024 parts",
        ),
        (f"multipart/form-data; boundary={'x' * 300}", b"", "the form cannot be read: "),
    ],
)
def test_broken_forms(address: str, content_type: str, body: bytes, sentence: str) -> None:
    response = requests.post(f"{address}/caption", data=body, headers={"content-type": content_type})
    assert response.status_code == 400
    assert error_of(response)["message"].startswith(sentence)


@settings(max_examples=100, deadline=None)
@given(
    body=st.binary(max_size=40), charset=st.sampled_from(["", "utf-8", "utf-16", "utf-7", "punycode", "rot13", "\0"])
)
def test_whatever_a_form_has_it_is_answered_or_refused(address: str, body: bytes, charset: str) -> None:
    headers = {"content-type": f"multipart/form-data; boundary=x; charset={charset}".replace("\0", "zero")}
    response = requests.post(f"{address}/caption", data=HEAD + body + b"\r\n--x--\r\n", headers=headers)
    assert response.status_code in (200, 400), response.text
