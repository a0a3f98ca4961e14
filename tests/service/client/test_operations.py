"""Requests, results and errors of every operation, with both clients."""

from __future__ import annotations

import inspect
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

from headwaiter.client import (
    NO_RETRIES,
    AsyncClient,
    Client,
    DeadlineExceeded,
    EpisodeLost,
    HeadwaiterError,
    History,
    InternalError,
    InvalidInput,
    NotFound,
    Overloaded,
    Step,
    Unauthenticated,
    Unavailable,
    WrongAddress,
    WrongTask,
    responses,
)
from headwaiter.client.results import Box, Hypothesis, Label, Model, ModelSummary, Timing, Usage
from headwaiter.v1 import common_pb2
from tests.echo_server_kit import EchoServer, Rejection, invalid_argument
from tests.http_kit import http_server
from tests.service.client.conftest import IMAGE_BYTES, Caller


def test_translate_single_text_returns_result(call: Caller, server: EchoServer) -> None:
    result = call("translate", "zh-en", "你好", num_return_sequences=2, num_beams=2, target_language="en", split=False)
    assert (result.text, result.score) == ("你好!", -0.25)
    assert result.hypotheses == (Hypothesis("你好!", -0.25, "stop"), Hypothesis("你好!?", -0.5, "stop"))
    assert result.sentences == (Hypothesis("你好!", -0.25, "stop"),)
    assert (result.model, result.usage, result.timing) == (Model("echo", "3"), Usage(5, 7, 1), Timing(0.5, 1.5, 2.5))
    (request,) = server.requests
    assert list(request.text) == ["你好"]
    assert {field.name for field, _ in request.decoding.ListFields()} == {"num_return_sequences", "num_beams"}
    assert (request.target_language, request.split) == ("en", False)
    assert request.HasField("split")
    assert not request.HasField("source_language")


@pytest.mark.parametrize("operation", ["translate", "generate", "caption"])
def test_generated_text_cut_off_has_finish_reason_length(call: Caller, operation: str) -> None:
    value = IMAGE_BYTES if operation == "caption" else "a"
    assert call(operation, "echo", value).finish_reason == "stop"
    assert call(operation, "echo", value, max_new_tokens=1).finish_reason == "length"


def test_generated_text_of_server_without_finish_reason_has_none() -> None:
    assert responses.done(common_pb2.Done(text="a")).finish_reason is None


def test_translate_list_returns_list(call: Caller, server: EchoServer) -> None:
    assert [result.text for result in call("translate", "zh-en", ["a", "b"])] == ["a!", "b!"]
    assert [result.text for result in call("translate", "zh-en", ("c",))] == ["c!"]
    assert call("translate", "zh-en", []) == []
    assert not server.requests[0].HasField("decoding")


def test_image_every_source_type_is_sent(call: Caller, server: EchoServer, tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.new("RGB", (4, 3), "red").save(path)
    content = path.read_bytes()
    pil = Image.new("CMYK", (4, 3))
    sources = [str(path), path, content, io.BytesIO(content), pil]
    results = call("caption", "echo", sources, prompt="a: ", max_new_tokens=5)
    assert [result.text for result in results[:4]] == [f"a: {len(content)} bytes!"] * 4
    *unchanged, png = [image.data for image in server.requests[0].image]
    assert unchanged == [content] * 4
    assert Image.open(io.BytesIO(png)).size == (4, 3)
    with pytest.raises(InvalidInput, match=r"image is 1.5; it must be a path"):
        call("detect", "echo", 1.5)
    with pytest.raises(FileNotFoundError):
        call("detect", "echo", tmp_path / "missing.png")


def test_classify_positional_input_is_text_pair_or_image(call: Caller, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.new("RGB", (4, 3), "red").save(path)
    kinds = {
        "a bird": "text",
        str(path): "text",
        ("a", "b"): "text_pair",
        path: "image",
        path.read_bytes(): "image",
    }
    for value, kind in kinds.items():
        assert call("classify", "echo", value).labels[0].name == kind
    results = call("classify", "echo", [*kinds, io.BytesIO(b"x"), Image.open(path)])
    assert [result.labels[0].name for result in results] == [*kinds.values(), "image", "image"]


def test_classify_texts_pairs_and_images_return_labels(call: Caller, server: EchoServer) -> None:
    assert call("classify", "echo", text="a").labels == (Label("text", 1, 0.75),)
    assert call("classify", "echo", text=("a", "b"), top_k=2).labels[0].name == "text_pair"
    results = call("classify", "echo", text=["a", ("b", "c")], threshold=0.0)
    assert [result.labels[0].name for result in results] == ["text", "text_pair"]
    assert call("classify", "echo", image=[IMAGE_BYTES])[0].labels[0].name == "image"
    assert server.requests[1].top_k == 2
    assert server.requests[2].HasField("threshold")
    assert (server.requests[2].input[1].text_pair.first, server.requests[2].input[1].text_pair.second) == ("b", "c")
    for inputs in ({}, {"text": "a", "image": IMAGE_BYTES}, {"text": "a", "input": "a"}):
        with pytest.raises(InvalidInput, match="exactly one of input, text and image is required") as caught:
            call("classify", "echo", **inputs)
        assert caught.value.field == "input"


def test_detect_returns_boxes(call: Caller, server: EchoServer) -> None:
    result = call("detect", "echo", IMAGE_BYTES, threshold=0.25, max_boxes=3)
    assert (result.width, result.height) == (40, 30)
    assert result.boxes == (Box("cat[1]", 4, 0.875, 2, 3, 30, 20),)
    assert (server.requests[0].threshold, server.requests[0].max_boxes) == (0.25, 3)


def test_act_history_returns_action(call: Caller, server: EchoServer) -> None:
    history = History([Step(np.zeros(2, np.float32), 1, 0.5), Step((1, 2), [0.5, -0.5], 0), Step([3.0, 4.0])], 40)
    result = call("act", "echo", history, greedy=False, seed=0)
    assert (result.discrete, result.continuous, result.scores) == (3, None, (0.25, 0.75))
    assert [action.discrete for action in call("act", "echo", [history, History([], 1)])] == [3, 0]
    (message,) = server.requests[0].history
    assert message.target_return == 40
    assert [step.action.WhichOneof("choice") for step in message.steps] == ["discrete", "continuous", None]
    assert [step.HasField("reward") for step in message.steps] == [True, True, False]
    assert server.requests[0].HasField("seed")


def test_generate_models_describe_return_results(call: Caller, server: EchoServer) -> None:
    assert call("generate", "echo", "once").text == "once!"
    assert call("generate_images", "echo", count=2, seed=7).images == (b"\0", b"\1")
    assert call("models") == [ModelSummary("echo", "translation", "3", True)]
    description = call("describe", "echo")
    assert (description.limits, description.labels) == ({"text": 20_000}, ("cat", "dog"))
    assert (description.state_size, description.action_size, description.action_kind) == (17, 6, "continuous")
    assert description.languages is None
    assert description.decoding == {"num_beams": 4, "early_stopping": False, "length_penalty": 0.5}
    assert [metadata["application"] for metadata in server.metadata] == ["echo", "echo", "catalog", "echo"]


def test_metadata_contains_model_key_and_request_id(call: Caller, server: EchoServer) -> None:
    call("translate", "zh-en", "a", request_id="mine", client_options={"key": "secret"})
    call("translate", "zh-en", "a")
    call("translate", "zh-en", "a")
    first, second, third = server.metadata
    assert (first["application"], first["authorization"], first["x-request-id"]) == ("zh-en", "Bearer secret", "mine")
    assert "authorization" not in second
    assert len({second["x-request-id"], third["x-request-id"]}) == 2


INVALID_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "decoding.num_beams": ({"num_beams": "4"}, "decoding.num_beams is '4'; it must be an integer"),
    "decoding.top_k": ({"top_k": 2**40}, "decoding.top_k is 1099511627776"),
    "text[1]": ({"text": ["a", "b\ud800"]}, "text[1] is 'b\\ud800'"),
    "text[0]": ({"text": [None]}, "text[0] is None; it must be a string"),
    "text": ({"text": 5}, "text is 5; it must be a string"),
    "model": ({"model": "模型"}, "model has characters"),
    "request_id": ({"request_id": "a\nb"}, "request_id has characters"),
}


@pytest.mark.parametrize("field", INVALID_VALUES)
def test_request_invalid_value_raises_before_sending(call: Caller, server: EchoServer, field: str) -> None:
    arguments, message = INVALID_VALUES[field]
    with pytest.raises(InvalidInput) as caught:
        call("translate", **{"model": "echo", "text": "a", **arguments})
    assert message in str(caught.value)
    assert (caught.value.field, caught.value.code) == (field, "INVALID_ARGUMENT")
    assert server.requests == []


@pytest.mark.parametrize("operation", ["translate", "classify", "generate", "caption", "detect"])
@pytest.mark.parametrize("value", [5, [None]])
def test_input_of_wrong_type_is_named_with_what_it_must_be(call: Caller, operation: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^(text|prompt|image|input)(\[0\])? is (5|None); it must be ") as caught:
        call(operation, "echo", value)
    assert str(caught.value).startswith(f"{caught.value.field} is ")


@pytest.mark.parametrize("operation", ["translate_stream", "generate_stream"])
def test_stream_input_none_raises_before_sending(operation: str) -> None:
    with Client("localhost:1") as client, pytest.raises(InvalidInput, match="is None; it must be a string"):
        getattr(client, operation)("echo", None)


def test_decoding_unknown_parameter_raises_type_error(call: Caller) -> None:
    with pytest.raises(TypeError, match="beans is not a decoding parameter; use one of max_new_tokens, num_beams,"):
        call("translate", "echo", "a", beans=3)


ERROR_TYPES = {
    "UNAUTHENTICATED": Unauthenticated,
    "NOT_FOUND": NotFound,
    "UNIMPLEMENTED": WrongTask,
    "RESOURCE_EXHAUSTED": Overloaded,
    "ABORTED": EpisodeLost,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNAVAILABLE": Unavailable,
    "INTERNAL": InternalError,
    "DATA_LOSS": HeadwaiterError,
}


@pytest.mark.parametrize("code", ERROR_TYPES)
def test_error_type_and_message_follow_status_code(call: Caller, server: EchoServer, code: str) -> None:
    server.rejections.append(Rejection(grpc.StatusCode[code], "server details"))
    with pytest.raises(HeadwaiterError) as caught:
        call("translate", "zh-en", "a", request_id="mine", client_options={"retries": NO_RETRIES})
    assert type(caught.value) is ERROR_TYPES[code]
    assert (caught.value.code, caught.value.request_id) == (code, "mine")
    assert caught.value.message == {
        "NOT_FOUND": f"{server.address} serves no model 'zh-en'; available models: echo.",
        "DEADLINE_EXCEEDED": f"{server.address} did not respond for model 'zh-en' before the deadline.",
        "UNAVAILABLE": f"{server.address} is unavailable: server details",
    }.get(code, "server details")


@pytest.mark.parametrize("catalog_code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE])
def test_model_and_catalog_not_found_is_retried(
    call: Caller, server: EchoServer, catalog_code: grpc.StatusCode
) -> None:
    """Ray's proxy returns NOT_FOUND for every application while the service starts or stops."""
    rejections = [Rejection(grpc.StatusCode.NOT_FOUND, "?"), Rejection(catalog_code, "?")]
    server.rejections.extend(rejections)
    call("translate", "zh-en", "a")
    server.rejections.extend(rejections)
    with pytest.raises(Unavailable, match="no running replica"):
        call("translate", "zh-en", "a", client_options={"retries": NO_RETRIES})


def test_model_not_found_but_listed_is_unavailable(call: Caller, server: EchoServer) -> None:
    server.rejections.append(Rejection(grpc.StatusCode.NOT_FOUND, "?"))
    with pytest.raises(Unavailable, match="no running replica"):
        call("translate", "echo", "a", client_options={"retries": NO_RETRIES})


def test_model_not_found_and_catalog_fails_keeps_error(call: Caller, server: EchoServer) -> None:
    server.rejections.extend([Rejection(grpc.StatusCode.NOT_FOUND, "?"), Rejection(grpc.StatusCode.INTERNAL, "?")])
    with pytest.raises(NotFound) as caught:
        call("translate", "zh-en", "a", client_options={"retries": NO_RETRIES, "key": "secret"})
    assert caught.value.message == f"{server.address} serves no model 'zh-en'."
    asked = server.metadata[-1]
    assert (asked["application"], asked["authorization"]) == ("catalog", "Bearer secret")


@pytest.mark.parametrize("status", [400, 404, 405])
def test_address_that_answers_http2_status_raises_wrong_address(call: Caller, server: EchoServer, status: int) -> None:
    server.rejections.append(Rejection(grpc.StatusCode.UNIMPLEMENTED, f"Received http2 header with status: {status}"))
    with pytest.raises(WrongAddress, match="speaks HTTP, not gRPC; the gRPC port is 9000 by default"):
        call("translate", "zh-en", "a")
    assert len(server.requests) == 1


def test_http_port_as_address_raises_wrong_address_at_once() -> None:
    with http_server(FastAPI(), prefix="") as url:
        address = url.removeprefix("http://")
        with Client(address) as client, pytest.raises(WrongAddress, match=f"{address} speaks HTTP, not gRPC"):
            client.translate("echo", "a")


def test_error_details_set_field_limit_and_request_id(call: Caller, server: EchoServer) -> None:
    message = "text[2] has 61,000 characters; the limit is 20,000"
    server.rejections.append(invalid_argument("text[2]", message, "20000"))
    with pytest.raises(ValueError, match="61,000") as caught:
        call("translate", "echo", "a")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert isinstance(error, InvalidInput)
        assert (str(error), error.field, error.limit) == (message, "text[2]", 20_000)
        assert (error.code, error.request_id) == ("INVALID_ARGUMENT", "server-request-id")
    server.rejections.append(invalid_argument("threshold", "threshold is 2", "0.5"))
    with pytest.raises(InvalidInput) as caught_again:
        call("detect", "echo", IMAGE_BYTES)
    assert caught_again.value.limit == 0.5


def test_client_shared_by_threads_returns_each_result(server: EchoServer) -> None:
    with Client(server.address) as client, ThreadPoolExecutor(8) as pool:
        texts = [str(number) for number in range(64)]
        results = pool.map(lambda text: client.translate("echo", text).text, texts, timeout=60)
        assert list(results) == [f"{text}!" for text in texts]


def test_request_size_limited_by_server_only(call: Caller, server: EchoServer) -> None:
    # No retries: on a busy machine an upload of this size can exceed the attempt timeout of the fixture.
    options = {"retries": NO_RETRIES}
    call("detect", "echo", bytes(33 * 2**20), client_options=options)
    with pytest.raises(InvalidInput, match="The request is too large for"):
        call("detect", "echo", bytes(65 * 2**20), client_options=options)
    sizes = [len(request.image[0].data) for request in server.requests]  # the messages are too large to print
    assert sizes == [33 * 2**20]


def test_clients_have_same_methods_and_signatures() -> None:
    methods = {name for name, value in vars(Client).items() if hasattr(value, "__wrapped__")}
    assert methods == {name for name, value in vars(AsyncClient).items() if hasattr(value, "__wrapped__")}
    assert methods >= {"translate", "classify", "call"}
    for name in methods:
        assert inspect.signature(getattr(Client, name)) == inspect.signature(getattr(AsyncClient, name))
    assert list(inspect.signature(Client("x").translate).parameters)[:2] == ["model", "text"]
    assert "Translate a text" in (Client.translate.__doc__ or "")


def test_import_without_service_dependencies_succeeds() -> None:
    blocked = ["numpy", "pydantic", "ray", "PIL", "typer", "rich", "onnxruntime", "tokenizers", "torch", "grpc_tools"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); from headwaiter.client import AsyncClient, Client"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
