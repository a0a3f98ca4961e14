"""`make gpu-smoke`: compare every menu model in fp16 on CUDA with fp32 on the CPU.

Serves the packages that `python -m loadtest.gpu_packages` exported, sends both the same requests and prints how many
answers match and the request rates. Exits with 1 if answers differ. Runs in an environment without torch.
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

from headwaiter.client import Client, History, Step
from loadtest.gpu_packages import PACKAGES, GpuPackages
from loadtest.service_process import running_service

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


@dataclass(frozen=True, slots=True)
class Comparison:
    agree: int
    total: int
    per_second: float

    @property
    def agrees(self) -> bool:
        """True if at most one answer differs: fp16 may break a near tie differently."""
        return self.agree >= self.total - 1


def sample_images(count: int = 4, side: int = 224) -> list[bytes]:
    images = []
    for seed in range(count):
        pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
        with io.BytesIO() as file:
            Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC).save(file, "PNG")
            images.append(file.getvalue())
    return images


def make_queries(client: Client, model: str) -> list[Callable[[str], Any]]:
    """Return queries for a model of this task; each takes a model name and returns the answer to compare."""
    description = client.describe(model)
    if description.task == "policy":
        states = np.random.default_rng(0).normal(size=(4, description.state_size or 1)).round(2).tolist()
        return [
            _bind_input(lambda name, state: client.act(name, History([Step(state)], 1.0)).discrete, state)
            for state in states
        ]
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
    reads_text = description.task in by_text and (description.task not in by_image or "length" in description.limits)
    if reads_text:
        return [
            _bind_input(by_text[description.task], text)
            for text in (_PROMPTS if description.task == "generation" else _TEXTS)
        ]
    return [_bind_input(by_image[description.task], image) for image in sample_images()]


def _bind_input(query: Callable[[str, Any], Any], value: Any) -> Callable[[str], Any]:
    return lambda name: query(name, value)


def compare(client: Client, one: str, other: str, *, seconds: float = _SECONDS) -> Comparison:
    """Count the matching answers of two models and measure the request rate of the first."""
    queries = make_queries(client, one)
    agree = sum(query(one) == query(other) for query in queries)
    return Comparison(agree, len(queries), _rate(queries, one, seconds))


def _rate(queries: Sequence[Callable[[str], Any]], model: str, seconds: float) -> float:
    started = time.monotonic()

    def call(caller: int) -> int:
        calls = 0
        while time.monotonic() < started + seconds:
            queries[(caller + calls) % len(queries)](model)
            calls += 1
        return calls

    with ThreadPoolExecutor(_CALLERS) as pool:
        calls = sum(pool.map(call, range(_CALLERS)))
    return calls / (time.monotonic() - started)


def _gpus() -> list[str]:
    try:
        result = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        return []
    return result.stdout.split("\n")[:-1] if result.returncode == 0 else []


def _require_cuda() -> None:
    import onnxruntime

    if not _gpus():
        sys.exit("There is no GPU here (nvidia-smi finds none); nothing was tried.")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        sys.exit(
            "The installed ONNX Runtime has no CUDA provider; `make gpu-smoke` creates an environment that has it."
        )


def main() -> None:
    _require_cuda()
    if not PACKAGES.is_file():
        sys.exit("No packages have been exported for this test; `make gpu-smoke` exports them.")
    packages = GpuPackages.load(PACKAGES)
    gpu_share = round(0.9 / len(packages.models), 3)
    models: dict[str, Any] = {}
    for name, paths in packages.models.items():
        on_gpu = {"precision": "fp16", "device": "cuda", "resources": {"cpus": 0.5, "gpus": gpu_share}}
        on_cpu = {"precision": "fp32", "device": "cpu", "resources": {"cpus": 0.5}}
        models[name] = {"path": paths["fp16"], **on_gpu}
        models[name + ON_CPU] = {"path": paths["fp32"], **on_cpu}
    print(f"GPU: {', '.join(_gpus())}")  # noqa: T201
    with (
        tempfile.TemporaryDirectory() as folder,
        running_service(Path(folder), models) as service,
        service.client() as client,
    ):
        differ = [name for name in packages.models if not _compare_and_print(client, name).agrees]
    if differ:
        sys.exit(f"Answers on the GPU differ from those on the CPU: {', '.join(differ)}.")


def _compare_and_print(client: Client, name: str) -> Comparison:
    gpu, cpu = compare(client, name, name + ON_CPU), compare(client, name + ON_CPU, name + ON_CPU)
    print(f"{name}: {gpu.agree} of {gpu.total} agree, {gpu.per_second:.1f} requests/s, CPU {cpu.per_second:.1f}")  # noqa: T201
    return gpu


if __name__ == "__main__":
    main()
