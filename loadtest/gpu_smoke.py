"""`make gpu-smoke`, for the first person with a GPU: every model of the menu in fp16 on CUDA beside fp32 on the CPU.

Exports what is missing, serves both, asks both the same, and prints how many answers agree and how fast each was.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from export.menu import menu
from loadtest.served import serving
from service.client import Client, History, Step

ON_CPU = "-on-cpu"
_CALLERS, _SECONDS = 16, 10.0
_TEXTS = (
    "服务器崩溃了，请稍后再试。",
    "今天天气很好。",
    "你能告诉我最近的地铁站在哪里吗？",
    "Good morning.",
    "Once upon a time",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    agree: int
    asked: int
    per_second: float


def pictures(count: int = 4, side: int = 224) -> list[bytes]:
    found = []
    for seed in range(count):
        small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
        with io.BytesIO() as file:
            Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC).save(file, "PNG")
            found.append(file.getvalue())
    return found


def questions(client: Client, model: str) -> list[Callable[[str], Any]]:
    """What to ask a model of this task, by any name; each gives what must agree."""
    about = client.describe(model)
    if about.task == "policy":
        states = np.random.default_rng(0).normal(size=(4, about.state_size or 1)).round(2).tolist()
        return [_asking(lambda name, state: client.act(name, History([Step(state)], 1.0)).discrete, x) for x in states]
    by_text: dict[str, Callable[[str, str], Any]] = {
        "translation": lambda name, text: client.translate(name, text).text,
        "generation": lambda name, text: client.generate(name, text, max_new_tokens=16).text,
        "classification": lambda name, text: client.classify(name, text=text, top_k=1).labels[0].name,
    }
    by_image: dict[str, Callable[[str, bytes], Any]] = {
        "captioning": lambda name, image: client.caption(name, image).text,
        "classification": lambda name, image: client.classify(name, image=image, top_k=1).labels[0].name,
        "detection": lambda name, image: sorted(box.name for box in client.detect(name, image).boxes),
    }
    reads_text = about.task in by_text and (about.task not in by_image or "length" in about.limits)
    if reads_text:
        return [_asking(by_text[about.task], text) for text in _TEXTS]
    return [_asking(by_image[about.task], image) for image in pictures()]


def _asking(ask: Callable[[str, Any], Any], what: Any) -> Callable[[str], Any]:
    return lambda name: ask(name, what)


def compare(client: Client, one: str, other: str, *, seconds: float = _SECONDS) -> Outcome:
    """How many answers of the two agree, and the calls a second that the first answers."""
    asks = questions(client, one)
    agree = sum(ask(one) == ask(other) for ask in asks)
    return Outcome(agree, len(asks), _rate(asks, one, seconds))


def _rate(asks: Sequence[Callable[[str], Any]], model: str, seconds: float) -> float:
    begun = time.monotonic()

    def call(caller: int) -> int:
        calls = 0
        while time.monotonic() < begun + seconds:
            asks[(caller + calls) % len(asks)](model)
            calls += 1
        return calls

    with ThreadPoolExecutor(_CALLERS) as pool:
        calls = sum(pool.map(call, range(_CALLERS)))
    return calls / (time.monotonic() - begun)


def _gpus() -> list[str]:
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return []
    return listed.stdout.split("\n")[:-1] if listed.returncode == 0 else []


def _demand_cuda() -> None:
    import onnxruntime

    if not _gpus():
        sys.exit("There is no GPU here (nvidia-smi finds none); nothing was tried.")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        sys.exit(
            "ONNX Runtime here is the CPU's; `pip uninstall onnxruntime`, then "
            "`pip install -c constraints.txt '.[serve,gpu]'`."
        )


def _exported(name: str, precision: str) -> str:
    if not Path("models", name, "1", precision, "manifest.json").is_file():
        command = [str(Path(sys.executable).with_name("headwaiter")), "export", name, "--precision", precision]
        subprocess.run(command, check=True)
    return str(Path("models", name).resolve())


def main() -> None:
    _demand_cuda()
    names = list(menu())
    share = round(0.9 / len(names), 3)
    told: dict[str, Any] = {}
    for name in names:
        on_gpu = {"precision": "fp16", "device": "cuda", "resources": {"cpus": 0.5, "gpus": share}}
        on_cpu = {"precision": "fp32", "device": "cpu", "resources": {"cpus": 0.5}}
        told[name] = {"path": _exported(name, "fp16"), **on_gpu}
        told[name + ON_CPU] = {"path": _exported(name, "fp32"), **on_cpu}
    print(f"GPU: {', '.join(_gpus())}")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), told) as service, service.client() as client:
        for name in names:
            gpu = compare(client, name, name + ON_CPU)
            cpu = compare(client, name + ON_CPU, name + ON_CPU)
            print(f"{name}: {gpu.agree} of {gpu.asked} agree, {gpu.per_second:.1f} calls/s, CPU {cpu.per_second:.1f}")  # noqa: T201


if __name__ == "__main__":
    main()
