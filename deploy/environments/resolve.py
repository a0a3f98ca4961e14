"""`python -m deploy.environments.resolve`: resolves every environment against the plain public registry.

Settings of this machine (pip's and uv's configuration, local wheels) are switched off, so that what resolves here
resolves for a new user. uv reads metadata only: nothing is downloaded or installed, torch included.

`--lock` writes the constraints files anew, keeping every version that is pinned already.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy.environments.definitions import ENVIRONMENTS, OPTIONAL_EXTRAS, PYTHON_VERSIONS, ROOT, Environment

# torch pins its CUDA libraries itself; a pin of ours could only contradict it.
_PINNED_BY_TORCH = re.compile(r"^(nvidia-|cuda-|triton==)")
_PIN = re.compile(r"^([\w.-]+)==(\S+)")


class ResolutionError(Exception):
    """An environment does not resolve, or not to its pinned versions."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.environments.resolve", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="write constraints/*.txt anew")
    options = parser.parse_args()
    try:
        for environment in ENVIRONMENTS.values():
            if options.lock:
                lock(environment)
            for python in PYTHON_VERSIONS:
                packages = check(environment, python)
                sys.stdout.write(f"{environment.name} resolves for Python {python}: {len(packages)} packages\n")
                sys.stdout.flush()
    except ResolutionError as error:
        sys.exit(str(error))


def check(environment: Environment, python: str) -> dict[str, str]:
    """Resolve an environment under its constraints; returns versions by package name."""
    packages = pins(resolve(environment, python, ["--constraint", str(environment.constraints)]))
    pinned = pins(environment.constraints.read_text(encoding="utf-8"))
    torch_libraries = {name for name in packages if _PINNED_BY_TORCH.match(f"{name}==")}
    if unpinned := packages.keys() - pinned.keys() - (torch_libraries if environment.has_torch else set()):
        raise ResolutionError(
            f"{environment.constraints.name} does not pin {', '.join(sorted(unpinned))}; run `make lock`."
        )
    return packages


def lock(environment: Environment) -> None:
    """Write the constraints of an environment. Pinned versions stay where they still fit."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "constraints.txt"
        if environment.constraints.is_file():
            shutil.copy(environment.constraints, output)
        lines = resolve(environment, PYTHON_VERSIONS[0], ["--output-file", str(output)]).splitlines()
    if environment.has_torch:
        lines = [line for line in lines if not _PINNED_BY_TORCH.match(line)]
    environment.constraints.parent.mkdir(exist_ok=True)
    environment.constraints.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def resolve(environment: Environment, python: str, options: Sequence[str]) -> str:
    """The pins that uv resolves an environment to, one a line."""
    extras = [*environment.extras, *OPTIONAL_EXTRAS.get(environment.name, ())]
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("uv"), "pip", "compile", "pyproject.toml"),
            *(word for extra in extras for word in ("--extra", extra)),
            *(
                "--python-version",
                python,
                "--python-platform",
                f"x86_64-manylinux_{environment.glibc.replace('.', '_')}",
            ),
            *("--only-binary", ":all:", "--no-config", "--no-header", "--no-annotate"),
            *options,
        ],
        cwd=ROOT,
        env=plain_environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ResolutionError(f"{environment.name} does not resolve for Python {python}:\n{done.stderr.strip()}")
    return done.stdout


def plain_environment() -> dict[str, str]:
    """This process's environment without the settings that make pip and uv find anything but the public registry."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return ours | {"PIP_CONFIG_FILE": os.devnull}


def pins(text: str) -> dict[str, str]:
    """Versions by normalised package name."""
    matches = (_PIN.match(line) for line in text.splitlines())
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in matches if match}


if __name__ == "__main__":
    main()
