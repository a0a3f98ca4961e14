"""The list of models, and whatever is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from google.protobuf.message import Message

from headwaiter.v1 import models_pb2
from service.ingress.calls import Call
from service.ingress.endpoint import Endpoint
from service.ingress.http.catalog import build_catalog_app
from service.keys import Keys, line_for, make_key
from tests.counts_kit import Counts
from tests.http_kit import error_of, listening

MODELS = [
    models_pb2.ModelSummary(name="emoji-detr", task="detection", version="1", ready=False),
    models_pb2.ModelSummary(name="opus-mt-zh-en", task="translation", version="2", ready=True),
]


def catalog(keys: Keys | None = None, *, ready: bool = True) -> Any:
    async def list_models(_: Message, __: Call) -> Message:
        return models_pb2.ListModelsResponse(models=MODELS)

    async def names() -> list[str]:
        return [model.name for model in MODELS]

    endpoint = Endpoint("catalog", {"ListModels": list_models}, does="listing", keys=keys, recorder=Counts())
    return build_catalog_app(endpoint, names=names, ready=lambda: ready)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listening(catalog(), prefix="") as found:
        yield found


@pytest.mark.parametrize("path", ["/models", "/models/"])
def test_models_are_listed(address: str, path: str) -> None:
    response = requests.get(address + path)
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
        ("GET", "/models/soup"),
        ("POST", "/models/soup/translate"),
        ("GET", "/models/soup/"),
        ("PUT", "/models/soup/a/b"),
    ],
)
def test_a_model_that_is_not_there_is_told_with_those_that_are(address: str, method: str, path: str) -> None:
    response = requests.request(method, address + path)
    assert response.status_code == 404
    words = "soup is not a model; there are emoji-detr, opus-mt-zh-en"
    assert error_of(response) == {"code": "NOT_FOUND", "message": words}


@pytest.mark.parametrize("path", ["/soup", "/favicon.ico", "/modelsoup", "//", "/docs", "/openapi.json"])
def test_anything_else_is_not_there(address: str, path: str) -> None:
    response = requests.get(address + path)
    assert response.status_code == 404
    assert error_of(response) == {"code": "NOT_FOUND", "message": f"{path} is not there"}


def test_another_way_of_asking(address: str) -> None:
    response = requests.post(f"{address}/models")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


def test_health_and_readiness(address: str) -> None:
    for page in ("healthz", "readyz"):
        assert requests.get(f"{address}/{page}").status_code == 200
    with listening(catalog(ready=False), prefix="") as starting:
        assert requests.get(f"{starting}/healthz").status_code == 200
        assert requests.get(f"{starting}/readyz").status_code == 503


def test_the_front_page_is_for_people_or_for_programs(address: str) -> None:
    page = requests.get(f"{address}/", headers={"accept": "text/html,application/xhtml+xml"})
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert requests.get(f"{address}/").json()["links"]["models"] == "/models"


def test_names_are_not_told_without_a_key(tmp_path: Any) -> None:
    key, file = make_key(), tmp_path / "keys"
    file.write_text(line_for("shop", key) + "\n")
    with listening(catalog(Keys.load(file)), prefix="") as address:
        for path in ("/models", "/models/soup"):
            response = requests.get(address + path)
            assert response.status_code == 401
            assert "emoji" not in response.text
            known = requests.get(address + path, headers={"authorization": f"Bearer {key}"})
            assert "emoji" in known.text
        assert "emoji" not in requests.get(f"{address}/", headers={"accept": "text/html"}).text
