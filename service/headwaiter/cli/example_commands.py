"""Addresses and example commands that `headwaiter serve` prints when the service is ready."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headwaiter.package.manifest import Manifest
from headwaiter.serving.config import Service

KEY_VARIABLE = "HEADWAITER_KEY"
_DEFAULT_ADDRESS = "localhost:9000"  # default of `headwaiter call --address`


@dataclass(frozen=True, slots=True)
class _Example:
    operation: str
    result_attribute: str = ""
    field: str = ""
    value: str | int = ""


_EXAMPLES = {
    "translation": _Example("translate", ".text", "text", "Good morning."),
    "captioning": _Example("caption", ".text", "image", "samples/scene-1.png"),
    "classification": _Example("classify", ".labels", "image", "samples/sneaker.png"),
    "detection": _Example("detect", ".boxes", "image", "samples/scene-1.png"),
    "generation": _Example("generate", ".text", "prompt", "Once upon a time"),
    "policy": _Example("describe"),
}
_IMAGE_GENERATION = _Example("generate-images", ".images", "count", 4)
_SAMPLE_SENTENCES = {"zh": "服务器崩溃了，请稍后再试。"}


def print_endpoints(service: Service, print_line: Callable[..., None], logs: Path | str | None = None) -> None:
    """Print the addresses and an example of each kind of client; `logs` only if this command runs the service."""
    config = service.config
    print_line()
    print_line(f"gRPC     localhost:{config.grpc.port}")
    print_line(f"HTTP     http://localhost:{config.http.port}/models")
    if logs:
        print_line(f"metrics  http://localhost:{config.metrics.port}/metrics")
        print_line(f"logs     {logs}")
    print_line()
    if service.keys:
        print_line(f"  export {KEY_VARIABLE}=…")
    for command in example_commands(service):
        print_line(f"  {command}")
    print_line()


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


def _example(manifest: Manifest) -> _Example:
    if manifest.noise is not None:
        return _IMAGE_GENERATION
    example = _EXAMPLES[manifest.task]
    if manifest.task == "translation" and manifest.languages:
        return replace(example, value=_SAMPLE_SENTENCES.get(manifest.languages.get("source", ""), example.value))
    if manifest.task == "classification" and manifest.preprocessing.image is None:
        return replace(example, field="text", value="That was a good film.")
    if (
        example.field == "image" and not Path(str(example.value)).is_file()
    ):  # the working directory is not the repository
        return replace(example, value="photo.jpg")
    return example


def _cli_command(name: str, example: _Example, address: str) -> str:
    is_option = (example.operation, example.field) in (("classify", "image"), ("generate-images", "count"))
    flag = [f"--{example.field}"] if is_option else []
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


def _curl_command(url: str, example: _Example, *, needs_key: bool) -> str:
    command = f'curl -H "authorization: Bearer ${KEY_VARIABLE}"' if needs_key else "curl"
    match example.field:
        case "":
            return f"{command} {url}"
        case "image":
            return f"{command} {url}/{example.operation} -F image=@{example.value}"
        case _:
            body = json.dumps({example.field: example.value}, ensure_ascii=False)
            return f"{command} {url}/{example.operation} -H 'content-type: application/json' -d {shlex.quote(body)}"


def _python_command(name: str, example: _Example, address: str, *, needs_key: bool) -> str:
    imports = "import os; from headwaiter.client import Client" if needs_key else "from headwaiter.client import Client"
    client = f'Client("{address}", key=os.environ["{KEY_VARIABLE}"])' if needs_key else f'Client("{address}")'
    value = json.dumps(example.value, ensure_ascii=False)
    is_keyword = example.operation in ("classify", "generate-images")
    argument = f", {example.field}={value}" if is_keyword else f", {value}" if example.value else ""
    operation = example.operation.replace("-", "_")
    code = f'{imports}; print({client}.{operation}("{name}"{argument}){example.result_attribute})'
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
