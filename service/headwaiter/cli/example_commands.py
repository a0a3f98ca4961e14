"""Example commands that `headwaiter serve` prints when the service is ready."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from headwaiter.package.manifest import Manifest
from headwaiter.protocol.tasks import Example, task_specs
from headwaiter.serving.config import Service

KEY_VARIABLE = "HEADWAITER_KEY"
_DEFAULT_ADDRESS = "localhost:9000"  # default of `headwaiter call --address`


_DESCRIBE = Example("describe")
_SAMPLE_SENTENCES = {"zh": "服务器崩溃了，请稍后再试。"}


def example_commands(service: Service) -> list[str]:
    """Return a `headwaiter call`, a curl and a Python command for the first model."""
    name, package = next(iter(service.packages.items()))
    example = _example(package.manifest)
    grpc, http = (
        f"localhost:{service.config.grpc.port}",
        f"http://localhost:{service.config.http.port}",
    )
    needs_key = service.keys is not None
    return [
        _cli_command(name, example, grpc),
        _curl_command(f"{http}/models/{name}", example, needs_key=needs_key),
        _python_command(name, example, grpc, needs_key=needs_key),
    ]


def _example(manifest: Manifest) -> Example:
    example = task_specs()[manifest.task_key].example or _DESCRIBE
    if manifest.task == "translation" and manifest.languages:
        return replace(example, value=_SAMPLE_SENTENCES.get(manifest.languages.get("source", ""), example.value))
    if manifest.task == "classification" and manifest.preprocessing.image is None:
        return replace(example, field="text", value="That was a good film.", is_option=False)
    if (
        example.field == "image" and not Path(str(example.value)).is_file()
    ):  # the working directory is not the repository
        return replace(example, value="photo.jpg")
    return example


def _cli_command(name: str, example: Example, address: str) -> str:
    flag = [f"--{example.field}"] if example.is_option else []
    address_option = [] if address == _DEFAULT_ADDRESS else ["--address", address]
    return shlex.join(
        [
            _program_path("headwaiter"),
            "call",
            name,
            example.operation,
            *flag,
            *([str(example.value)] if example.value else []),
            *address_option,
        ]
    )


def _curl_command(url: str, example: Example, *, needs_key: bool) -> str:
    command = f'curl -H "authorization: Bearer ${KEY_VARIABLE}"' if needs_key else "curl"
    match example.field:
        case "":
            return f"{command} {url}"
        case "image":
            return f"{command} {url}/{example.operation} -F image=@{example.value}"
        case _:
            body = json.dumps({example.field: example.value}, ensure_ascii=False)
            return f"{command} {url}/{example.operation} -H 'content-type: application/json' -d {shlex.quote(body)}"


def _python_command(name: str, example: Example, address: str, *, needs_key: bool) -> str:
    imports = "import os; from headwaiter.client import Client" if needs_key else "from headwaiter.client import Client"
    client = f'Client("{address}", key=os.environ["{KEY_VARIABLE}"])' if needs_key else f'Client("{address}")'
    value = json.dumps(example.value, ensure_ascii=False)
    is_keyword = example.operation in ("classify", "generate-images")
    argument = f", {example.field}={value}" if is_keyword else f", {value}" if example.value else ""
    operation = example.operation.replace("-", "_")
    code = f'{imports}; print({client}.{operation}("{name}"{argument}){example.result})'
    return f"{_program_path('python')} -c {shlex.quote(code)}"


def _program_path(name: str) -> str:
    """Return the bare name if the shell finds this installation's program under it, else the program's path."""
    installed = Path(sys.executable).parent / name
    on_path = shutil.which(name)
    if not installed.exists():
        return name
    if on_path and Path(on_path).resolve() == installed.resolve() and Path(on_path).parent == installed.parent:
        return name
    return os.path.relpath(installed) if installed.is_relative_to(Path.cwd()) else str(installed)
