"""The wheel, installed alone in a clean environment next to a package called `service`, calls a real server; an
editable installation keeps its types."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from pyproject_hooks import BuildBackendHookCaller

from tests.echo_server_kit import EchoServer, run_server

ROOT = Path(__file__).parents[1]
PACKAGES = {"headwaiter": "service", "headwaiter_export": "export"}
CALL = """
import sys
import service                                  # the application's own package
from headwaiter.client import Client

assert service.MINE
with Client(sys.argv[1]) as client:
    print(client.translate("echo", "你好").text)
heavy = {"numpy", "onnxruntime", "ray", "torch", "pydantic", "typer"} & set(sys.modules)
assert not heavy, heavy
"""

TYPED = """
from headwaiter import open_model
from headwaiter.client import Client

with Client("localhost:9000") as client:
    client.translate("echo", "你好")
    client.translate("echo", 5)                 # error
open_model("models/echo")
open_model(5)                                   # error
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing left over in the checkout gets into it."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for folder in PACKAGES.values():
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(output)]
    _run([sys.executable, "-m", "pip", "wheel", *options, str(source)])
    (path,) = output.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel and its dependencies, without extras."""
    folder = tmp_path_factory.mktemp("client") / ".venv"
    venv.create(folder, with_pip=True)
    _install(folder / "bin/python", str(wheel))
    return folder / "bin/python"


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `headwaiter` of a clean environment with the wheel and the extra `cli`."""
    folder = tmp_path_factory.mktemp("command") / ".venv"
    venv.create(folder, with_pip=True)
    _install(folder / "bin/python", f"{wheel}[cli]")
    return folder / "bin/headwaiter"


@pytest.mark.slow
def test_wheel_contains_all_of_two_packages_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    for package, folder in PACKAGES.items():
        modules = {str(path.relative_to(ROOT / folder)) for path in (ROOT / folder / package).rglob("*.py")}
        assert modules == {name for name in names if name.startswith(f"{package}/") and name.endswith(".py")}
    protocol = {f"headwaiter/v1/{path.name}" for path in (ROOT / "service/headwaiter/v1").iterdir() if path.is_file()}
    assert protocol == {name for name in names if name.startswith("headwaiter/v1/")}
    assert {"headwaiter/py.typed", "headwaiter/v1/descriptors.binpb", "headwaiter/engine/copy_graphs/1.onnx"} <= names


@pytest.mark.slow
def test_client_installed_alone_next_to_package_called_service_calls_a_server(python: Path, tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "service/__init__.py").write_text("MINE = True\n")
    (tmp_path / "application.py").write_text(CALL, encoding="utf-8")
    with run_server(EchoServer()) as server:
        done = _run([str(python), "application.py", server.address], cwd=tmp_path)
    assert done == "你好!\n"


@pytest.mark.slow
def test_command_in_client_only_installation_says_what_to_install(python: Path) -> None:
    done = subprocess.run([python.with_name("headwaiter")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "headwaiter[cli]" in done.stderr
    assert "headwaiter[serve,cpu]" in done.stderr


@pytest.mark.slow
def test_call_in_client_installation_with_extra_calls_a_server(command: Path) -> None:
    assert "Call a served model" in _run([str(command), "call", "--help"])
    with run_server(EchoServer()) as server:
        done = _run([str(command), "call", "echo", "translate", "你好", "--address", server.address])
    assert done == "你好!\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        ("serve serve.yaml", "serve,cpu"),
        ("export bert", "export,cpu"),
        ("inspect bert", "export,cpu"),
        ("menu export", "export,cpu,zoo"),
        ("zoo", "export,cpu,zoo"),
    ],
)
def test_command_with_missing_dependency_says_what_to_install(command: Path, arguments: str, extras: str) -> None:
    done = subprocess.run([command, *arguments.split()], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"pip install 'headwaiter[{extras}]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a clean environment with an editable installation of this checkout."""
    folder, output = tmp_path_factory.mktemp("editable") / ".venv", tmp_path_factory.mktemp("dist")
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    backend = BuildBackendHookCaller(ROOT, build_system["build-backend"], backend_path=build_system["backend-path"])
    wheel = output / backend.build_editable(str(output))
    venv.create(folder, with_pip=True)
    _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    return folder / "bin/python"


@pytest.mark.slow
def test_editable_installation_shows_its_types_to_mypy(editable: Path, tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(TYPED, encoding="utf-8")
    options = ["--strict", "--python-executable", str(editable), "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "application.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=_without_pythonpath())
    errors = [line.split(":")[1] for line in done.stdout.splitlines() if ": error: " in line]
    assert errors == [str(number) for number, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# error")]


@pytest.mark.slow
def test_editable_installation_imports_both_packages_from_the_checkout(editable: Path, tmp_path: Path) -> None:
    code = "import headwaiter, headwaiter_export as export; print(headwaiter.__file__, export.__file__, sep='\\n')"
    done = subprocess.run(
        [editable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=_without_pythonpath()
    )
    expected = [ROOT / folder / package / "__init__.py" for package, folder in PACKAGES.items()]
    assert [Path(line) for line in done.stdout.splitlines()] == expected


def test_call_command_imports_no_engine() -> None:
    code = "import sys, headwaiter.cli.call; print(*sys.modules)"
    modules = set(_run([sys.executable, "-c", code]).split())
    assert not {"headwaiter.tasks", "headwaiter.engine", "headwaiter.api", "ray", "numpy", "PIL", "pydantic"} & modules


def _without_pythonpath() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _install(python: Path, requirement: str) -> None:
    constraints = ROOT / "constraints" / "serve-cpu.txt"
    _run([str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), requirement])


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
