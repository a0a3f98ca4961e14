"""What an image is made of. No container engine is needed: the same set is laid out as a virtual environment of its
own, in which nothing else can be imported, and serves."""

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

from loadtest.served import serving
from service.rendering import ENVIRONMENT
from tests.conftest import Packages

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "deploy/docker").glob("*.Dockerfile"))
EXTRAS = {"cpu.Dockerfile": "serve,cpu", "cuda.Dockerfile": "serve,gpu"}
ABSENT = ("torch", "transformers", "onnx", "onnxscript", "ctranslate2", "pytest")


@pytest.fixture(params=DOCKERFILES, ids=lambda file: file.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    file: Path = request.param
    return file


def test_there_is_one_for_each_kind_of_machine() -> None:
    assert {file.name for file in DOCKERFILES} == EXTRAS.keys()


def test_hadolint_finds_no_fault(dockerfile: Path) -> None:
    done = subprocess.run([Path(sys.executable).with_name("hadolint"), dockerfile], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_versions_are_pinned_and_nobody_is_root(dockerfile: Path) -> None:
    text = dockerfile.read_text(encoding="utf-8")
    stages = set(re.findall(r"^FROM \S+ AS (\w+)", text, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - stages
    assert bases == {"python:3.11.14-slim-bookworm"}
    assert f"pip install -c constraints.txt '.[{EXTRAS[dockerfile.name]}]'" in text
    assert re.findall(r"^USER (\w+)", text, re.MULTILINE) == ["1000"]


def test_images_set_what_every_node_needs(dockerfile: Path) -> None:
    text = dockerfile.read_text(encoding="utf-8")
    assert [name for name, value in ENVIRONMENT.items() if f"{name}={value}" not in text] == []


@pytest.mark.parametrize("file", [*DOCKERFILES, ROOT / "deploy/README.md"], ids=lambda file: file.name)
def test_tags_name_the_version(file: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    kinds = {name.partition(".")[0] for name in EXTRAS}
    tags = set(re.findall(r"headwaiter:([\w.-]+)", file.read_text(encoding="utf-8")))
    assert tags
    assert tags <= {f"{version}-{kind}" for kind in kinds}


def test_what_a_volume_at_models_hides_is_not_baked_there(dockerfile: Path) -> None:
    (place,) = re.findall(r"^COPY .*models (\S+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    assert place == "/opt/models"


def test_what_is_copied_is_there_and_not_ignored(dockerfile: Path) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", dockerfile.read_text(), re.MULTILINE)
    sources = {source for line in copies for source in line.split()}
    assert sources == let_in
    assert [source for source in sources - {"models"} if not (ROOT / source).exists()] == []


def _closure(name: str, extras: frozenset[str], seen: dict[tuple[str, str], Distribution]) -> None:
    found = distribution(name)
    for extra in extras | {""}:
        if (found.name, extra) in seen:
            continue
        seen[found.name, extra] = found
        for line in found.requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                _closure(needed.name, frozenset(needed.extras), seen)


def _tops(found: Distribution) -> Iterator[str]:
    """The files and folders of a distribution, as they lie in site-packages; scripts lie elsewhere."""
    for file in found.files or []:
        if file.parts[0] not in ("..", "__pycache__"):
            yield file.parts[0]


@pytest.fixture(scope="module")
def serving_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the distributions that `pip install '.[serve,cpu]'` brings, as installed here."""
    folder = tmp_path_factory.mktemp("serving")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    seen: dict[tuple[str, str], Distribution] = {}
    _closure("headwaiter", frozenset(EXTRAS["cpu.Dockerfile"].split(",")), seen)
    for found in {each.name: each for each in seen.values() if each.name != "headwaiter"}.values():
        for top in set(_tops(found)):
            source, target = Path(str(found.locate_file(top))), packages / top
            _link(source, target)
    for source in (ROOT / "service", ROOT / "protos/headwaiter"):
        (packages / source.name).symlink_to(source)
    (about,) = Path(sysconfig.get_paths()["purelib"]).glob("headwaiter-*.dist-info")
    (packages / about.name).symlink_to(about)
    script = folder / "bin/headwaiter"
    script.write_text(f"#!{folder}/bin/python\nfrom service.cli import main\nmain()\n")
    script.chmod(0o755)
    return folder


def _link(source: Path, target: Path) -> None:
    """Folders that several distributions share, as `google`, are made anew and their parts linked."""
    if target.is_symlink() and target.is_dir():
        shared = target.resolve()
        target.unlink()
        target.mkdir()
        for part in shared.iterdir():
            _link(part, target / part.name)
    elif not target.exists():
        target.symlink_to(source)


def test_the_serving_set_has_no_torch_and_no_transformers(serving_set: Path) -> None:
    code = f"import importlib.util as u; print([m for m in {ABSENT} if u.find_spec(m)])"
    done = subprocess.run([serving_set / "bin/python", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_serving_set_alone_serves(serving_set: Path, packages: Packages, tmp_path: Path) -> None:
    model = {"path": str(packages("bert", "fp32").package.folder), "resources": {"cpus": 0.1}}
    python = serving_set / "bin/python"
    with serving(tmp_path, {"texts": model}, python=python) as service, service.client(timeout=60) as client:
        assert client.classify("texts", text="ab cd").labels
