"""HTTP application of the catalog: the list of models and the errors for unknown ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def catalog(keys: Keys | None = None, *, not_ready: Sequence[str] = ()) -> Any:
    async def list_models(_: Message, __: RequestContext) -> Message:
        return models_pb2.ListModelsResponse(models=MODELS)

    def names() -> list[str]:
        return [model.name for model in MODELS]

    endpoint = Endpoint(
        "catalog", {"ListModels": list_models}, task_description="listing", keys=keys, recorder=Counts()
    )
    return build_catalog_app(endpoint, names=names, not_ready=lambda: not_ready)


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
    with http_server(catalog(not_ready=["emoji-detr"]), prefix="") as starting:
        assert get(f"{starting}/healthz").status_code == 200
        response = get(f"{starting}/readyz")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert error_of(response) == {"code": "UNAVAILABLE", "message": "not ready: emoji-detr"}
        assert get(f"{starting}/").json()["not_ready"] == ["emoji-detr"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/models/emoji-detr"), ("POST", "/models/emoji-detr/detect"), ("GET", "/models/emoji-detr/readyz")],
)
def test_model_without_route_is_unavailable(address: str, method: str, path: str) -> None:
    response = request(method, address + path)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert error_of(response) == {"code": "UNAVAILABLE", "message": "emoji-detr has no running replica; try again"}


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
    with http_server(catalog(Keys.load(file), not_ready=["emoji-detr"]), prefix="") as address:
        probe = get(f"{address}/readyz")
        assert error_of(probe)["message"] == "not ready: 1 of 2 models"
        assert get(f"{address}/models/emoji-detr/readyz").status_code == 503  # probes send no key
        index = get(f"{address}/").json()
        assert (index["ready"], index["not_ready"]) == (False, [])
        for path in ("/models", "/models/unknown"):
            response = get(address + path)
            assert response.status_code == 401
            assert "emoji" not in response.text
            authenticated = get(address + path, headers={"authorization": f"Bearer {key}"})
            assert "emoji" in authenticated.text
        assert "emoji" not in get(f"{address}/", headers={"accept": "text/html"}).text
