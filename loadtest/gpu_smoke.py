"""`make gpu-smoke`, for the first person with a GPU: every model of the menu in fp16 on CUDA beside fp32 on the CPU.

Exports what is missing, serves both, asks both the same, and prints how many answers agree and how fast each was (exit
1 if they do not). The menu has nothing that generates: a small model of the zoo, trained for some seconds, stands in.
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
from service.package import MANIFEST

ON_CPU = "-on-cpu"
_CALLERS, _SECONDS = 16, 10.0
_TEXTS = (
    "服务器崩溃了，请稍后再试。",
    "今天天气很好。",
    "你能告诉我最近的地铁站在哪里吗？",
    "Good morning.",
    "Once upon a time",
)
_PROMPTS = ("a b c d :", "e f :", "j i h g f :", "a a b b :", "c :")
_WRITER, _WRITER_STEPS = "gpt2", 300
_CHECKPOINTS = Path("build/gpu-smoke")


@dataclass(frozen=True, slots=True)
class Outcome:
    agree: int
    asked: int
    per_second: float

    @property
    def agrees(self) -> bool:
        """But for one answer: where two are as good as equal, fp16 may choose the other."""
        return self.agree >= self.asked - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model, and what `headwaiter export` takes for it."""

    name: str
    version: str
    source: str

    def package(self, precision: str, models: Path = Path("models")) -> Path:
        """Exported, unless it is there."""
        folder = models / self.name / self.version / precision
        if not (folder / MANIFEST).is_file():
            said = {"--name": self.name, "--version": self.version, "--precision": precision, "--out": str(models)}
            options = [word for option in said.items() for word in option]
            subprocess.run([Path(sys.executable).with_name("headwaiter"), "export", self.source, *options], check=True)
        return folder.resolve()


def wanted() -> list[Wanted]:
    return [*(Wanted(dish.name, dish.version, dish.name) for dish in menu().values()), writer(_CHECKPOINTS)]


def writer(checkpoints: Path, steps: int = _WRITER_STEPS) -> Wanted:
    """Taken up where it was left, so trained once."""
    from export.zoo.registry import find
    from export.zoo.training import train

    train(find(_WRITER), checkpoints / _WRITER, steps=steps)
    return Wanted(f"{_WRITER}-copying", "1", str(checkpoints / _WRITER))


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
        "generation": lambda name, text: client.generate(name, text, max_new_tokens=12).text,
        "classification": lambda name, text: client.classify(name, text=text, top_k=1).labels[0].name,
    }
    by_image: dict[str, Callable[[str, bytes], Any]] = {
        "captioning": lambda name, image: client.caption(name, image).text,
        "classification": lambda name, image: client.classify(name, image=image, top_k=1).labels[0].name,
        "detection": lambda name, image: sorted(box.name for box in client.detect(name, image).boxes),
    }
    reads_text = about.task in by_text and (about.task not in by_image or "length" in about.limits)
    if reads_text:
        return [_asking(by_text[about.task], text) for text in (_PROMPTS if about.task == "generation" else _TEXTS)]
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
        sys.exit("ONNX Runtime here is the CPU's; `make gpu-smoke` makes an environment with the other.")


def main() -> None:
    _demand_cuda()
    models = wanted()
    share = round(0.9 / len(models), 3)
    told: dict[str, Any] = {}
    for each in models:
        on_gpu = {"precision": "fp16", "device": "cuda", "resources": {"cpus": 0.5, "gpus": share}}
        on_cpu = {"precision": "fp32", "device": "cpu", "resources": {"cpus": 0.5}}
        told[each.name] = {"path": str(each.package("fp16")), **on_gpu}
        told[each.name + ON_CPU] = {"path": str(each.package("fp32")), **on_cpu}
    print(f"GPU: {', '.join(_gpus())}")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), told) as service, service.client() as client:
        differ = [each.name for each in models if not _told(client, each.name).agrees]
    if differ:
        sys.exit(f"On the GPU {' and '.join(differ)} answered otherwise than on the CPU.")


def _told(client: Client, name: str) -> Outcome:
    gpu, cpu = compare(client, name, name + ON_CPU), compare(client, name + ON_CPU, name + ON_CPU)
    print(f"{name}: {gpu.agree} of {gpu.asked} agree, {gpu.per_second:.1f} calls/s, CPU {cpu.per_second:.1f}")  # noqa: T201
    return gpu


if __name__ == "__main__":
    main()
