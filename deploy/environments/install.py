"""`python -m deploy.environments.install NAME`: sets up a virtual environment, or continues an interrupted set-up.

Run by `make` with the system's Python, so it uses the standard library only. pip's full output goes to `setup.log` in
the environment; the terminal shows progress, and one sentence if something fails.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from deploy.environments.definitions import ENVIRONMENTS, PYTHON_VERSIONS, ROOT, TORCH, TORCH_CPU, Environment
from deploy.environments.pip_progress import Progress, explain

PIP = "pip==26.1.1"
READY = ".ready"
LOG = "setup.log"
_TORCH_INDEX = "TORCH_INDEX"
_CUDA_DOWNLOAD_GB = 3.2
_CUDA_DISK_MB = 6_500
_MINIMUM_FREE_MB = 500


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.environments.install", description=__doc__)
    parser.add_argument("environment", choices=ENVIRONMENTS)
    parser.add_argument("--extras", nargs="+", default=[], help="install these extras instead of the environment's own")
    parser.add_argument("--stamp", default=READY, help=f"file that marks the environment as complete (default {READY})")
    options = parser.parse_args()
    environment = ENVIRONMENTS[options.environment]
    try:
        check_python()
        with _lock(environment):
            install(environment, tuple(options.extras), options.stamp)
    except SetupError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("Interrupted; the same command continues where it stopped.", 130)


def install(environment: Environment, extras: tuple[str, ...], stamp: str) -> None:
    """Create the environment if there is none that fits, then install what is missing from it."""
    started = time.monotonic()
    _prepare(environment, stamp)
    pip = Pip(environment)
    pip.run("pip", ["--upgrade", PIP])
    if environment.has_torch:
        install_torch(environment, pip)
    constraints = ["--constraint", str(environment.constraints), "--only-binary", ":all:"]
    pip.run("packages", [*constraints, "--editable", environment.requirement(extras)])
    (environment.path / stamp).write_text(f"{sys.version.split()[0]} {ROOT}\n", encoding="utf-8")
    _print(f"{environment.directory} is ready ({time.monotonic() - started:.0f} s).")


def install_torch(environment: Environment, pip: Pip) -> None:
    """Take torch's CPU build where pip finds one; otherwise say what the registry's build costs before fetching it."""
    if pip.has(TORCH.replace("==", " ")):
        return
    index = os.environ.get(_TORCH_INDEX)
    source = ["--index-url", index] if index else []
    if pip.try_run("torch, CPU build", ["--no-deps", "--only-binary", ":all:", *source, TORCH_CPU]):
        return
    if index:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(
            f"{_TORCH_INDEX} is {index}, which has no {TORCH_CPU} for Python {version}; unset or change it."
        )
    _require_space(environment, _CUDA_DISK_MB)
    _print(
        "pip finds no CPU build of torch; the registry's build brings CUDA libraries: "
        f"{_CUDA_DOWNLOAD_GB} GB to download in all.\n"
        f"To avoid that, stop and set {_TORCH_INDEX} to PyTorch's CPU index (docs/install.md)."
    )


class Pip:
    """pip of an environment, with its output logged and summarised."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._python = environment.path / "bin" / "python"
        self._log = environment.path / LOG

    def run(self, what: str, arguments: Sequence[str]) -> None:
        if (output := self._install(what, arguments)) is not None:
            raise SetupError(f"{explain(output)} The full log is {self._log}.")

    def try_run(self, what: str, arguments: Sequence[str]) -> bool:
        """Like `run`, but a requirement that no index has is no error."""
        output = self._install(what, arguments)
        if output is None:
            return True
        if "No matching distribution found" in output and "Retrying" not in output:
            return False
        raise SetupError(f"{explain(output)} The full log is {self._log}.")

    def has(self, requirement: str) -> bool:
        name, version = requirement.split()
        listed = subprocess.run([self._python, "-m", "pip", "show", name], capture_output=True, text=True)
        return f"\nVersion: {version}" in listed.stdout

    def _install(self, what: str, arguments: Sequence[str]) -> str | None:
        """Returns None after a successful installation, otherwise pip's output."""
        command = [str(self._python), "-m", "pip", "install", "--no-input", "--progress-bar", "off", *arguments]
        environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUTF8": "1"}
        with (
            self._log.open("a", encoding="utf-8") as log,
            Progress(what, self._environment.path) as progress,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=environment,
            ) as process,
        ):
            assert process.stdout is not None
            output = []
            for line in process.stdout:
                log.write(line)
                log.flush()
                output.append(line)
                progress.read(line)
        return None if process.returncode == 0 else "".join(output)


def check_python() -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    if version not in PYTHON_VERSIONS:
        raise SetupError(f"{sys.executable} is Python {version}; supported are {', '.join(PYTHON_VERSIONS)}.")


def _prepare(environment: Environment, stamp: str = READY) -> None:
    """Create the environment, or keep one that can be continued; `stamp` is missing until it is complete again."""
    path, reason = environment.path, _why_unusable(environment.path)
    if path.exists() and reason:
        _print(f"Replacing {environment.directory}: {reason}.")
        shutil.rmtree(path)
    elif path.exists() and not (path / READY).exists():
        _print(f"Continuing an interrupted set-up of {environment.directory}.")
    if not path.exists():
        _require_space(environment, environment.disk_mb)
        made = subprocess.run([sys.executable, "-m", "venv", path], capture_output=True, text=True)
        if made.returncode:
            shutil.rmtree(path, ignore_errors=True)
            raise SetupError(
                f"Python's venv module failed ({explain(made.stdout + made.stderr)}) On Debian and Ubuntu, "
                f"install python3.{sys.version_info[1]}-venv."
            )
    (path / stamp).unlink(missing_ok=True)


def _why_unusable(path: Path) -> str:
    """Why an existing environment cannot be continued; empty if it can."""
    if not path.exists():
        return ""
    probe = "import sys, pip; print(sys.prefix, *sys.version_info[:2], sep='\\n')"
    try:
        answer = subprocess.run([path / "bin" / "python", "-c", probe], capture_output=True, text=True)
    except OSError:
        return "it is incomplete"
    if answer.returncode:
        return "it is incomplete"
    prefix, *version = answer.stdout.splitlines()
    if version != [str(part) for part in sys.version_info[:2]]:
        return f"it has Python {'.'.join(version)}, and {sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}"
    moved = Path(prefix).resolve() != path.resolve() or str(path) not in (path / "bin" / "pip").read_text(
        errors="replace"
    )
    return "it was made in another directory" if moved else ""


def _require_space(environment: Environment, needed_mb: int) -> None:
    free_mb = shutil.disk_usage(environment.path.parent).free // 1_000_000
    if free_mb < needed_mb + _MINIMUM_FREE_MB:
        raise SetupError(
            f"{environment.path.parent} has {free_mb / 1000:.1f} GB free; {environment.directory} needs "
            f"{(needed_mb + _MINIMUM_FREE_MB) / 1000:.1f} GB."
        )


@contextmanager
def _lock(environment: Environment) -> Iterator[None]:
    """Two set-ups of one environment, from two terminals, run one after the other."""
    try:
        stream = (ROOT / f"{environment.directory}.lock").open("a")
    except OSError as error:
        raise SetupError(
            f"{ROOT} cannot be written ({error.strerror}); clone the project into a directory of your own."
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _print(f"Another set-up of {environment.directory} is running; waiting for it.")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _fail(sentence: str, code: int) -> NoReturn:
    sys.stderr.write(f"{sentence}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
