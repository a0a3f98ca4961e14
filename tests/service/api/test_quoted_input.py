"""Errors and log lines quote only the beginning of what a client sent, and their number is limited."""

from __future__ import annotations

import logging

import pytest
from grpc_health.v1 import health_pb2

from headwaiter.api.context import RequestContext
from headwaiter.api.errors import FailedError, UnknownModelError
from headwaiter.api.health import Health
from headwaiter.api.http.model import build_app
from headwaiter.api.keys import Keys
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.translation import Translation
from headwaiter.v1 import translation_pb2
from tests.conftest import Packages
from tests.http_kit import FakeHandlers, error_of, http_server, request
from tests.task_kit import open_task

_LONG = "x" * 5000
_MAX_CHARS = 400


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/translate", {"method": "POST", "headers": {"content-type": _LONG}, "data": "{}"}),
        ("/translate", {"method": "POST", "json": {_LONG: 1}}),
        ("/translate", {"method": "POST", "json": {"text": {_LONG: _LONG}}}),
        ("/caption", {"method": "POST", "files": {_LONG: b"1", "image": b"2"}}),
        (f"/{_LONG}", {"method": "GET"}),
    ],
    ids=["content type", "field", "value", "form", "path"],
)
async def test_http_error_quotes_only_beginning_of_input(path: str, options: dict[str, object]) -> None:
    app = await build_app(FakeHandlers().endpoint(), ready=lambda: True)
    with http_server(app) as url:
        response = request(str(options["method"]), url + path, **{k: v for k, v in options.items() if k != "method"})
    assert response.status_code in (400, 404, 405)
    assert len(response.content) < _MAX_CHARS + 600
    assert len(error_of(response)["message"]) < _MAX_CHARS


def test_unknown_model_error_quotes_only_beginning_of_name() -> None:
    assert len(str(UnknownModelError(_LONG, ["writer"]))) < _MAX_CHARS


def test_unsupported_language_error_quotes_only_beginning(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    task = open_task(Translation, packages("marian", "fp32").package)
    monkeypatch.setitem(task.package.manifest.__dict__, "languages", {"source": "de", "target": "en"})
    request = translation_pb2.TranslateRequest(text=["a"], source_language=_LONG)
    with pytest.raises(InputError) as caught:
        task.parse(request, None)
    assert len(str(caught.value)) < _MAX_CHARS


async def test_health_error_quotes_only_beginning_of_service() -> None:
    class Context:
        details = ""

        def set_code(self, _: object) -> None: ...

        def set_details(self, details: str) -> None:
            self.details = details

    health, context = Health(), Context()
    health.name, health.is_ready = "tiny", lambda: True
    await health.Check(health_pb2.HealthCheckRequest(service=_LONG), context)
    assert 0 < len(context.details) < _MAX_CHARS


@pytest.mark.parametrize("limited", [True, False])
def test_log_unauthenticated_requests_are_rate_limited(caplog: pytest.LogCaptureFixture, limited: bool) -> None:
    endpoint = FakeHandlers().endpoint(keys=Keys(()) if limited else None)
    count = 200
    with caplog.at_level(logging.INFO, "headwaiter.requests"):
        for _ in range(count):
            with pytest.raises(FailedError):
                endpoint.accept(RequestContext.begin("Translate" if limited else "Detect", {}))
    lines = [record for record in caplog.records if record.name == "headwaiter.requests"]
    assert 20 <= len(lines) <= 60 if limited else len(lines) == count
