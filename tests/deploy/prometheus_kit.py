"""A real Prometheus that scrapes a service and evaluates the alert rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from loadtest.service_process import free_ports
from tests.deploy.promql_kit import RULES

IS_INSTALLED = shutil.which("prometheus") is not None
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def names(self) -> set[str]:
        return set(self.get("label/__name__/values"))


@contextmanager
def run_prometheus(folder: Path, metrics_url: str) -> Iterator[Prometheus]:
    (port,) = free_ports("prometheus").values()
    (folder / "rules.yaml").write_text(yaml.safe_dump(RULES))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "headwaiter", "static_configs": [{"targets": [urlsplit(metrics_url).netloc]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        _wait_for_first_scrape(prometheus)
        yield prometheus
    finally:
        process.terminate()
        process.wait(_TIMEOUT_SECONDS)


def _wait_for_first_scrape(prometheus: Prometheus) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            if prometheus.query("up == 1"):
                return
        except urllib.error.URLError:
            pass
        assert time.monotonic() < deadline, "Prometheus has not scraped the service"
        time.sleep(0.1)
