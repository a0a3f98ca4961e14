"""No telemetry: ONNX Runtime would store a device id in the user's cache and send usage data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("module", ["headwaiter.engine.session", "headwaiter_export.validation.runtime"])
def test_import_stores_no_device_id(module: str, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in _SETTINGS}
    environment = {**inherited, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, check=True, timeout=120)

    assert not [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name]


_SETTINGS = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
