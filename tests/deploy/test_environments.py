"""Set-up of environments: with real interpreters, a real pip and a local package index; no network is needed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.environments import install, ports
from deploy.environments.definitions import ENVIRONMENTS, PYTHON_VERSIONS, ROOT, TORCH_CPU, Environment
from deploy.environments.pip_progress import explain
from deploy.environments.resolve import pins, plain_environment

FIND_PYTHON = ROOT / "deploy/environments/find-python.sh"


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment of its own, in a directory whose name has a space and letters beyond ASCII."""
    folder = tmp_path / "dépôt local"
    folder.mkdir()
    return Environment("test", str(folder / ".venv"), ("export",), disk_mb=10)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """pip finds packages in this empty local index and nowhere else."""
    index = tmp_path / "index"
    index.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.as_uri())
    return index


def _add_torch(index: Path) -> None:
    """A package that calls itself torch's CPU build."""
    version = TORCH_CPU.partition("==")[2]
    folder = index / "torch"
    folder.mkdir()
    wheel, info = folder / f"torch-{version}-py3-none-any.whl", f"torch-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')


class TestConstraints:
    @pytest.mark.parametrize("name", ENVIRONMENTS)
    def test_constraints_of_environment_pin_torch_or_nvidia_never_both(self, name: str) -> None:
        names = set(pins(ENVIRONMENTS[name].constraints.read_text(encoding="utf-8")))
        has_nvidia = any(package.startswith(("nvidia-", "cuda-")) for package in names)
        assert ("torch" in names) == ENVIRONMENTS[name].has_torch
        assert has_nvidia == (name == "serve-gpu")

    def test_constraints_of_environments_agree_on_shared_packages(self) -> None:
        versions: dict[str, set[str]] = {}
        for environment in ENVIRONMENTS.values():
            for package, version in pins(environment.constraints.read_text(encoding="utf-8")).items():
                versions.setdefault(package, set()).add(version)
        assert {package: found for package, found in versions.items() if len(found) > 1} == {}

    def test_plain_environment_drops_settings_of_this_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_FIND_LINKS", "/somewhere")
        monkeypatch.setenv("UV_INDEX_URL", "file:///somewhere")
        plain = plain_environment()
        assert [name for name in plain if name.startswith(("PIP_", "UV_"))] == ["PIP_CONFIG_FILE"]


class TestFindPython:
    def _find(self, path: Path) -> str:
        done = subprocess.run(["/bin/sh", FIND_PYTHON], env={"PATH": str(path)}, capture_output=True, text=True)
        assert done.returncode == 0
        return done.stdout.strip()

    def test_find_python_with_broken_newer_launcher_takes_the_one_that_runs(self, tmp_path: Path) -> None:
        for minor in (12, 13):
            if minor != sys.version_info[1]:
                launcher = tmp_path / f"python3.{minor}"
                launcher.write_text("#!/bin/sh\nexit 127\n")
                launcher.chmod(0o755)
        works = tmp_path / "python3"
        works.symlink_to(sys.executable)
        assert self._find(tmp_path) == str(works)

    def test_find_python_without_any_prints_nothing(self, tmp_path: Path) -> None:
        assert self._find(tmp_path) == ""

    def test_make_without_python_says_what_to_install(self, tmp_path: Path) -> None:
        folder = tmp_path / "mit Leerzeichen"
        (folder / "constraints").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints/dev.txt"):
            shutil.copy(ROOT / name, folder / name)
        done = subprocess.run(["make", "setup", "PYTHON="], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 2
        assert "install Python 3.11, 3.12 or 3.13" in done.stderr


class TestPrepare:
    @pytest.mark.slow
    def test_prepare_incomplete_environment_replaces_it(
        self, environment: Environment, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (environment.path / "lib").mkdir(parents=True)
        install._prepare(environment)
        assert "Replacing" in capsys.readouterr().out
        assert (environment.path / "bin/pip").is_file()

    @pytest.mark.slow
    def test_prepare_interrupted_environment_continues_it(
        self, environment: Environment, capsys: pytest.CaptureFixture[str]
    ) -> None:
        install._prepare(environment)
        (environment.path / "kept").touch()
        capsys.readouterr()
        install._prepare(environment)
        assert "Continuing" in capsys.readouterr().out
        assert (environment.path / "kept").exists()

    @pytest.mark.slow
    def test_prepare_for_more_extras_keeps_the_environment_ready(self, environment: Environment) -> None:
        install._prepare(environment)
        (environment.path / install.READY).touch()
        (environment.path / ".bench").touch()
        install._prepare(environment, ".bench")
        assert (environment.path / install.READY).exists()
        assert not (environment.path / ".bench").exists()

    @pytest.mark.slow
    def test_prepare_environment_copied_from_elsewhere_replaces_it(
        self, environment: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        install._prepare(environment)
        copied = Environment("test", str(tmp_path / "copy"), (), disk_mb=10)
        shutil.copytree(environment.path, copied.path, symlinks=True)
        install._prepare(copied)
        assert "made in another directory" in capsys.readouterr().out

    def test_prepare_without_space_is_refused(self, environment: Environment) -> None:
        huge = Environment("test", environment.directory, (), disk_mb=10**9)
        with pytest.raises(install.SetupError, match="GB free"):
            install._prepare(huge)
        assert not huge.path.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
class TestTorch:
    def test_install_torch_with_cpu_index_takes_the_cpu_build(
        self, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cpu_index = tmp_path / "cpu"
        cpu_index.mkdir()
        _add_torch(cpu_index)
        monkeypatch.setenv("TORCH_INDEX", cpu_index.as_uri())
        install._prepare(environment)
        pip = install.Pip(environment)
        install.install_torch(environment, pip)
        assert pip.has(TORCH_CPU.replace("==", " "))

    def test_install_torch_with_index_that_lacks_it_is_refused(
        self, environment: Environment, offline: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORCH_INDEX", offline.as_uri())
        install._prepare(environment)
        with pytest.raises(install.SetupError, match="TORCH_INDEX"):
            install.install_torch(environment, install.Pip(environment))

    def test_install_torch_without_cpu_build_states_the_download_size(
        self,
        environment: Environment,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.delenv("TORCH_INDEX", raising=False)
        install._prepare(environment)
        install.install_torch(environment, install.Pip(environment))
        said = capsys.readouterr().out
        assert "GB to download" in said
        assert "TORCH_INDEX" in said


@pytest.mark.parametrize(
    ("output", "part"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError: Temporary failure in name resolution\nNo matching distribution found for x", "network"),
        ("ERROR: Permission denied: '/x y/z'", "/x y/z cannot be written"),
        ("ERROR: No matching distribution found for torch==9", "no wheel of torch==9"),
        ("ERROR: Cannot install a because these package versions have conflicting dependencies.", "contradict"),
        ("ERROR: something new.", "pip failed: something new."),
        ("", "pip failed: no output."),
    ],
)
def test_explain_pip_output_is_one_sentence(output: str, part: str) -> None:
    sentence = explain(output)
    assert part in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_install_with_unsupported_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    with pytest.raises(install.SetupError, match=", ".join(PYTHON_VERSIONS)):
        install.check_python()


def test_ports_in_use_names_the_port_and_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "deploy.environments.ports", f"GRPC_PORT={port}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2
    assert f"Port {port} is in use" in done.stderr
    assert "make serve GRPC_PORT=" in done.stderr


@pytest.mark.parametrize("value", ["", "abc", "0", "70000", "-1"])
def test_ports_that_are_no_port_number_are_refused(value: str) -> None:
    with pytest.raises(SystemExit) as caught:
        ports.main([f"HTTP_PORT={value}"])
    assert caught.value.code == 2
