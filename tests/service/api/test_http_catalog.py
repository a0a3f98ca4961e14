"""HTTP application of the catalog: the list of models and the errors for unknown ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Endpoint
from headwaiter.api.http.catalog import build_catalog_app
from headwaiter.api.keys import Keys, format_key_line, make_key
from headwaiter.v1 import models_pb2
from tests.counts_kit import Counts
from tests.http_kit import error_of, get, http_server, post, request

MODELS = [
    models_pb2.ModelSummary(name="emoji-detr", task="detection", version="1", ready=False),
    models_pb2.ModelSummary(name="opus-mt-zh-en", task="translation", version="2", ready=True),
]


def catalog(keys: Keys | None = None, *, ready: bool = True) -> Any:
    async def list_models(_: Message, __: RequestContext) -> Message:
        return models_pb2.ListModelsResponse(models=MODELS)

    async def names() -> list[str]:
        return [model.name for model in MODELS]

    endpoint = Endpoint(
        "catalog", {"ListModels": list_models}, task_description="listing", keys=keys, recorder=Counts()
    )
    return build_catalog_app(endpoint, names=names, ready=lambda: ready)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with http_server(catalog(), prefix="") as url:
        yield url


@pytest.mark.parametrize("path", ["/models", "/models/"])
def test_models_path_returns_model_list(address: str, path: str) -> None:
    response = get(address + path)
    assert response.status_code == 200
    assert response.json() == {
        "models": [
            {"name": "emoji-detr", "task": "detection", "version": "1", "ready": False},
            {"name": "opus-mt-zh-en", "task": "translation", "version": "2", "ready": True},
        ]
    }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/models/unknown"),
        ("POST", "/models/unknown/translate"),
        ("GET", "/models/unknown/"),
        ("PUT", "/models/unknown/a/b"),
    ],
)
def test_unknown_model_is_rejected_with_available_names(address: str, method: str, path: str) -> None:
    response = request(method, address + path)
    assert response.status_code == 404
    message = "no model is named unknown; available models: emoji-detr, opus-mt-zh-en"
    assert error_of(response) == {"code": "NOT_FOUND", "message": message}


@pytest.mark.parametrize("path", ["/unknown", "/favicon.ico", "/modelsunknown", "//", "/docs", "/openapi.json"])
def test_unknown_path_is_rejected(address: str, path: str) -> None:
    response = get(address + path)
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "NOT_FOUND"
    assert error["message"].startswith(f"{path} ")


def test_models_path_rejects_post(address: str) -> None:
    response = post(f"{address}/models")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


def test_health_endpoints_report_liveness_and_readiness(address: str) -> None:
    for page in ("healthz", "readyz"):
        assert get(f"{address}/{page}").status_code == 200
    with http_server(catalog(ready=False), prefix="") as starting:
        assert get(f"{starting}/healthz").status_code == 200
        assert get(f"{starting}/readyz").status_code == 503


def test_root_path_returns_html_or_json_by_accept_header(address: str) -> None:
    page = get(f"{address}/", headers={"accept": "text/html,application/xhtml+xml"})
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert get(f"{address}/").json()["links"]["models"] == "/models"


def test_model_names_require_api_key(tmp_path: Any) -> None:
    key, file = make_key(), tmp_path / "keys"
    file.write_text(format_key_line("client", key) + "\n")
    with http_server(catalog(Keys.load(file)), prefix="") as address:
        for path in ("/models", "/models/unknown"):
            response = get(address + path)
            assert response.status_code == 401
            assert "emoji" not in response.text
            authenticated = get(address + path, headers={"authorization": f"Bearer {key}"})
            assert "emoji" in authenticated.text
        assert "emoji" not in get(f"{address}/", headers={"accept": "text/html"}).text
