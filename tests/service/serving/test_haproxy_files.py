"""The directory of Serve's HAProxy files, per user and per Ray node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ray.serve._private import constants

from headwaiter.serving import haproxy_files

_TIMEOUT_SECONDS = 60
_MAX_SOCKET_PATH_BYTES = 107
_NODE_ID_LENGTH = 56


def test_environment_names_variables_of_serve_with_paths_of_this_user() -> None:
    variables = haproxy_files.environment()

    defaults = {name for name in vars(constants) if str(getattr(constants, name)).startswith("/tmp/haproxy-serve")}
    assert variables.keys() == defaults
    for path in variables.values():
        assert Path(path).is_relative_to(haproxy_files.directory())
        assert len(path) + 1 + _NODE_ID_LENGTH <= _MAX_SOCKET_PATH_BYTES
    assert haproxy_files.directory().stat().st_mode & 0o777 == 0o700


def test_environment_rejects_directory_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987_654_321)  # as another user, who finds a directory of ours
    haproxy_files.directory().mkdir()
    try:
        with pytest.raises(haproxy_files.ForeignDirectoryError, match="owned by another user"):
            haproxy_files.environment()
    finally:
        haproxy_files.directory().rmdir()


def test_remove_stops_proxy_of_node_only(tmp_path: Path) -> None:
    def start_proxy(node: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        return subprocess.Popen([*command, "-f", f"{haproxy_files.directory()}/{node}/haproxy.cfg"])

    node = tmp_path.name
    proxy, other = start_proxy(node), start_proxy(f"{node}-other")
    try:
        removing = threading.Thread(target=haproxy_files.remove, args=(node,))
        removing.start()

        assert proxy.wait(_TIMEOUT_SECONDS) == -signal.SIGTERM
        removing.join(_TIMEOUT_SECONDS)
        assert other.poll() is None
    finally:
        for process in (proxy, other):
            process.kill()
            process.wait(_TIMEOUT_SECONDS)
