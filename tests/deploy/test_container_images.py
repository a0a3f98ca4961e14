"""Contents of the container images.

No container engine is needed: the serving dependencies are linked into a separate virtual environment, in which nothing
else can be imported, and a service is started from it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from headwaiter.serving.ray_compat import NODE_ENVIRONMENT
from loadtest.service_process import running_service
from tests.conftest import Packages

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 120
DOCKERFILES = sorted((ROOT / "deploy/docker").glob("*.Dockerfile"))
EXTRAS = {"cpu.Dockerfile": "serve,cpu", "cuda.Dockerfile": "serve,gpu"}
ABSENT = ("torch", "transformers", "onnx", "onnxscript", "ctranslate2", "pytest")


@pytest.fixture(params=DOCKERFILES, ids=lambda file: file.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    file: Path = request.param
    return file


def test_dockerfiles_cover_every_device() -> None:
    assert {file.name for file in DOCKERFILES} == EXTRAS.keys()


def test_dockerfile_passes_hadolint(dockerfile: Path) -> None:
    command = [Path(sys.executable).with_name("hadolint"), dockerfile]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_dockerfile_pins_versions_and_user(dockerfile: Path) -> None:
    text = dockerfile.read_text(encoding="utf-8")
    stages = set(re.findall(r"^FROM \S+ AS (\w+)", text, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - stages
    assert bases == {"python:3.11.14-slim-bookworm"}
    extras = EXTRAS[dockerfile.name]
    assert f"pip install -c constraints/{extras.replace(',', '-')}.txt '.[{extras}]'" in text
    assert re.findall(r"^USER (\w+)", text, re.MULTILINE) == ["1000"]


def test_dockerfile_sets_node_environment(dockerfile: Path) -> None:
    text = dockerfile.read_text(encoding="utf-8")
    assert [name for name, value in NODE_ENVIRONMENT.items() if f"{name}={value}" not in text] == []


@pytest.mark.parametrize("file", [*DOCKERFILES, ROOT / "docs/operations/README.md"], ids=lambda file: file.name)
def test_image_tags_match_version(file: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    devices = {name.partition(".")[0] for name in EXTRAS}
    tags = set(re.findall(r"headwaiter:([\w.-]+)", file.read_text(encoding="utf-8")))
    assert tags
    assert tags <= {f"{version}-{device}" for device in devices}


def test_baked_models_are_outside_of_volume_path(dockerfile: Path) -> None:
    (target,) = re.findall(r"^COPY .*models (\S+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    assert target == "/opt/models"


def test_copied_files_exist_and_are_not_ignored(dockerfile: Path) -> None:
    included = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", dockerfile.read_text(), re.MULTILINE)
    sources = {source for line in copies for source in line.split()}
    assert sources == included
    assert [source for source in sources - {"models"} if not (ROOT / source).exists()] == []


def _collect_dependencies(name: str, extras: frozenset[str], seen: dict[tuple[str, str], Distribution]) -> None:
    installed = distribution(name)
    for extra in extras | {""}:
        if (installed.name, extra) in seen:
            continue
        seen[installed.name, extra] = installed
        for line in installed.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                _collect_dependencies(requirement.name, frozenset(requirement.extras), seen)


def _top_level_paths(installed: Distribution) -> Iterator[str]:
    """Top-level files and directories of a distribution in site-packages, without scripts."""
    for file in installed.files or []:
        if file.parts[0] not in ("..", "__pycache__"):
            yield file.parts[0]


@pytest.fixture(scope="module")
def serving_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with links to the distributions that `pip install '.[serve,cpu]'` installs."""
    folder = tmp_path_factory.mktemp("serving")
    venv.create(folder, with_pip=False, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    seen: dict[tuple[str, str], Distribution] = {}
    _collect_dependencies("headwaiter", frozenset(EXTRAS["cpu.Dockerfile"].split(",")), seen)
    dependencies = {installed.name: installed for installed in seen.values() if installed.name != "headwaiter"}
    for installed in dependencies.values():
        for path in set(_top_level_paths(installed)):
            _link(Path(str(installed.locate_file(path))), site_packages / path)
    (site_packages / "headwaiter").symlink_to(ROOT / "service/headwaiter")
    (metadata,) = Path(sysconfig.get_paths()["purelib"]).glob("headwaiter-*.dist-info")
    (site_packages / metadata.name).symlink_to(metadata)
    script = folder / "bin/headwaiter"
    script.write_text(f"#!{folder}/bin/python\nfrom headwaiter.cli.main import main\nmain()\n")
    script.chmod(0o755)
    return folder


def _link(source: Path, target: Path) -> None:
    """Link a file or directory. Directories that several distributions share, such as `google`, are linked by part."""
    if target.is_symlink() and target.is_dir():
        shared = target.resolve()
        target.unlink()
        target.mkdir()
        for part in shared.iterdir():
            _link(part, target / part.name)
    elif not target.exists():
        target.symlink_to(source)


def test_serving_environment_has_no_training_libraries(serving_environment: Path) -> None:
    code = f"import importlib.util as u; print([m for m in {ABSENT} if u.find_spec(m)])"
    command = [serving_environment / "bin/python", "-I", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_serving_environment_serves(serving_environment: Path, packages: Packages, tmp_path: Path) -> None:
    model = {"path": str(packages("bert", "fp32").package.folder), "resources": {"cpus": 0.1}}
    python = serving_environment / "bin/python"
    with running_service(tmp_path, {"texts": model}, python=python) as service, service.client(timeout=60) as client:
        assert client.classify("texts", text="ab cd").labels
