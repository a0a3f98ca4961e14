"""Three commands to paste, for whoever has just begun to serve."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from service.config import Service
from service.package import Manifest

KEY = "HEADWAITER_KEY"
_USUAL = "localhost:9000"  # where `headwaiter call` looks


@dataclass(frozen=True, slots=True)
class _Example:
    verb: str
    answer: str = ""
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
_PAINTING = _Example("generate-images", ".images", "count", 4)
_SENTENCES = {"zh": "服务器崩溃了，请稍后再试。"}


def commands(service: Service) -> list[str]:
    """A command, curl and Python, for the first model that is served."""
    name, package = next(iter(service.packages.items()))
    example = _example(package.manifest)
    grpc, http = f"localhost:{service.config.grpc.port}", f"http://localhost:{service.config.http.port}"
    keyed = service.keys is not None
    return [
        _shell(name, example, grpc),
        _curl(f"{http}/models/{name}", example, keyed=keyed),
        _python(name, example, grpc, keyed=keyed),
    ]


def _example(manifest: Manifest) -> _Example:
    if manifest.noise is not None:
        return _PAINTING
    example = _EXAMPLES[manifest.task]
    if manifest.task == "translation" and manifest.languages:
        return replace(example, value=_SENTENCES.get(manifest.languages.get("source", ""), example.value))
    if manifest.task == "classification" and manifest.preprocessing.image is None:
        return replace(example, field="text", value="That was a good film.")
    if example.field == "image" and not Path(str(example.value)).is_file():  # outside of the repository
        return replace(example, value="photo.jpg")
    return example


def _shell(name: str, example: _Example, address: str) -> str:
    named = (example.verb, example.field) in (("classify", "image"), ("generate-images", "count"))
    option = [f"--{example.field}"] if named else []
    where = [] if address == _USUAL else ["--address", address]
    return shlex.join(
        [
            _program("headwaiter"),
            "call",
            name,
            example.verb,
            *option,
            *([str(example.value)] if example.value else []),
            *where,
        ]
    )


def _curl(url: str, example: _Example, *, keyed: bool) -> str:
    command = f'curl -H "authorization: Bearer ${KEY}"' if keyed else "curl"
    match example.field:
        case "":
            return f"{command} {url}"
        case "image":
            return f"{command} {url}/{example.verb} -F image=@{example.value}"
        case _:
            body = json.dumps({example.field: example.value}, ensure_ascii=False)
            return f"{command} {url}/{example.verb} -H 'content-type: application/json' -d {shlex.quote(body)}"


def _python(name: str, example: _Example, address: str, *, keyed: bool) -> str:
    imports = "import os; from service.client import Client" if keyed else "from service.client import Client"
    client = f'Client("{address}", key=os.environ["{KEY}"])' if keyed else f'Client("{address}")'
    value = json.dumps(example.value, ensure_ascii=False)
    named = example.verb in ("classify", "generate-images")
    given = f", {example.field}={value}" if named else f", {value}" if example.value else ""
    verb = example.verb.replace("-", "_")
    code = f'{imports}; print({client}.{verb}("{name}"{given}){example.answer})'
    return f"{_program('python')} -c {shlex.quote(code)}"


def _program(name: str) -> str:
    """As it can be typed here: by its name where the shell would find this installation's, else with the way to it."""
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not own.exists() or (found and Path(found).resolve() == own.resolve() and Path(found).parent == own.parent):
        return name
    return os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own)
