"""Reloading the configuration of a running service (SIGHUP), without Ray: the failures occur before it is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from headwaiter.cli.local_service import reload_config
from headwaiter.cli.signals import StopRequested
from headwaiter.console import CommandConsole
from headwaiter.serving.cluster import Cluster
from headwaiter.serving.config import ConfigError, Service, load_config
from headwaiter.serving.errors import LaunchError
from headwaiter.serving.instance import Instance
from tests.serving_kit import write_config, write_package


class FailingCluster:
    """Raises `error` on deployment and counts the attempts."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.deployments = error, 0

    def deploy(self, rendered: dict[str, Any]) -> set[str]:  # noqa: ARG002
        self.deployments += 1
        raise self.error


@pytest.fixture
def service(tmp_path: Path) -> Service:
    write_package(tmp_path / "models", "one")
    return load_config(write_config(tmp_path / "serve.yaml", {"models": {"one": {"path": "models/one"}}}))


def _reload(service: Service, error: BaseException) -> FailingCluster:
    config = service.config
    instance = Instance(7, "127.0.0.1:6379", "node", config.http.host, config.ports)
    cluster = FailingCluster(error)
    reload_config(service, instance, cast(Cluster, cluster), lambda _: {"applications": []}, CommandConsole())
    return cluster


FAILURES: dict[str, tuple[BaseException, str]] = {
    "config": (ConfigError("serve.yaml: models is empty."), "models is empty."),
    "launch": (LaunchError("one did not start."), "one did not start."),
    "unexpected": (KeyError("applications"), "could not be reloaded: KeyError: 'applications'."),
    "several lines": (RuntimeError("Ray is down\nat line 1\nat line 2"), "RuntimeError: Ray is down."),
    "operating system": (PermissionError(13, "Permission denied", "keys.txt"), "Permission denied: 'keys.txt'."),
    "exit": (SystemExit(1), "could not be reloaded: SystemExit: 1."),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_reload_any_exception_prints_one_line_and_returns(
    service: Service, capsys: pytest.CaptureFixture[str], failure: str
) -> None:
    error, message = FAILURES[failure]
    cluster = _reload(service, error)
    captured = capsys.readouterr().err
    assert captured.startswith("✗ ")
    assert captured.endswith(f"{message} Serving continues as before.\n")
    assert captured.count("\n") == 1
    assert cluster.deployments == 1


def test_reload_invalid_file_deploys_nothing(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.file.write_bytes(b"models: \xff")
    cluster = _reload(service, AssertionError("deployed"))
    assert "Serving continues as before." in capsys.readouterr().err
    assert cluster.deployments == 0


def test_reload_closed_output_returns(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosedTerminal:
        encoding = "utf-8"

        def write(self, text: str) -> int:  # noqa: ARG002
            raise OSError(5, "Input/output error")

        def flush(self) -> None:
            raise OSError(5, "Input/output error")

        def isatty(self) -> bool:
            return False

    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", ClosedTerminal())
    assert _reload(service, RuntimeError("Ray is down")).deployments == 1


def test_reload_stop_signal_propagates(service: Service) -> None:
    with pytest.raises(StopRequested):
        _reload(service, StopRequested())
