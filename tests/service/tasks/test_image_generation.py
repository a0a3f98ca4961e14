"""Image generation in process, over gRPC and over HTTP."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from pathlib import Path

import grpc
import jsonschema
import numpy as np
import pytest
import requests
import torch
import typer
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from headwaiter import open_model
from headwaiter.api.http.model import build_app
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.cli.call import add_commands
from headwaiter.client import AsyncClient, InvalidInput, WrongTask
from headwaiter.package.manifest import Package, Precision, Preprocessing
from headwaiter.tasks.errors import InputError
from headwaiter_export.pipeline import ExportRequest, export
from headwaiter_export.zoo.architectures.transgan import TransGan
from headwaiter_export.zoo.checkpoint import Checkpoint
from headwaiter_export.zoo.sizes import ImageGeneratorSizes
from loadtest.overhead.plain_grpc_server import grpc_server
from tests.counts_kit import Counts
from tests.http_kit import error_of, http_server
from tests.openapi_kit import check_bound, stated_bounds

SIDE = 8
SIZES = ImageGeneratorSizes(size=64, heads=2, layers=1, image=SIDE, start=2, noise=12)
TIMEOUT_SECONDS = 60
INVALID_REQUESTS = [
    ({"count": 0}, "count is 0; it must be at least 1", "count", 1),
    ({"count": -3}, "count is -3; it must be at least 1", "count", 1),
    ({"count": 6}, "count is 6; the limit is 5", "count", 5),
    ({"seed": -1}, "seed is -1; it must be at least 0", "seed", 0),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generator")
    torch.manual_seed(3)
    model = TransGan(SIZES)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    Checkpoint(model, Preprocessing()).save(folder)
    return folder


@pytest.fixture(scope="module")
def package(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    return export(ExportRequest(str(checkpoint), name="generator", out=tmp_path_factory.mktemp("models")))


@pytest.fixture
def server(package: Package) -> Iterator[ModelServer]:
    model_server = ModelServer(
        ModelServerArgs(name="generator", folder=package.folder, settings={"threads": 1, "limits": {"images": 5}}),
        Counts(),
    )
    yield model_server
    model_server.close()


def pixels(file: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(file))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (SIDE, SIDE))
    return np.asarray(image).astype(int)


def test_generate_images_matches_torch(checkpoint: Path, package: Package) -> None:
    model = TransGan(SIZES)
    model.load_state_dict(load_file(checkpoint / "model.safetensors"))
    noise = np.stack([np.random.default_rng((7, index)).standard_normal(12, np.float32) for index in range(3)])
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(noise)).numpy().transpose(0, 2, 3, 1)
    with open_model(package.folder, threads=1) as served:
        generated = np.stack([pixels(file) for file in served.generate_images(3, seed=7)])
    assert np.abs(generated - 255 * expected).max() < 0.51
    assert generated.std(0).max() > 1


def test_export_excludes_critic_weights(checkpoint: Path, package: Package) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    critic = sum(value.numel() for name, value in weights.items() if name.startswith("critic."))
    assert critic > 0
    assert package.manifest.parameters == sum(value.numel() for value in weights.values()) - critic


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_generate_images_lower_precision_gives_distinct_images(
    checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    request = ExportRequest(str(checkpoint), name="generator", precision=precision, out=tmp_path)
    with open_model(export(request).folder, threads=1) as served:
        assert len({pixels(file).tobytes() for file in served.generate_images(4, seed=1)}) == 4


def test_generate_images_same_seed_gives_same_images_in_any_batch(package: Package) -> None:
    with open_model(package.folder, threads=1) as served:
        images = served.generate_images(40, seed=11)
        concurrent = [served.task.submit_noise(noise) for noise in served.task.sample_noise(30, seed=5)]
        repeated = served.generate_images(3, seed=11)
        assert served.generate_images(1, seed=11) == images[:1]
        assert repeated == images[:3]
        assert len(set(images)) == 40
        assert served.generate_images(1, seed=12) != images[:1]
        assert served.generate_images() != served.generate_images()
        assert served.counters["slot_steps"] > served.counters["steps"]
        for pending in concurrent:
            pending.result(TIMEOUT_SECONDS)


@pytest.mark.parametrize(("options", "message", "field", "limit"), INVALID_REQUESTS)
def test_generate_images_invalid_option_is_rejected(
    package: Package, options: dict[str, int], message: str, field: str, limit: int
) -> None:
    with open_model(package.folder, threads=1, limits={"images": 5}) as served:
        with pytest.raises(InputError) as error:
            served.generate_images(**options)
        assert (str(error.value), error.value.field, error.value.limit) == (message, field, limit)


async def test_generate_images_over_grpc_matches_in_process(package: Package, server: ModelServer) -> None:
    with open_model(package.folder, threads=1) as served:
        expected = served.generate_images(5, seed=4)
    async with grpc_server(server) as address, AsyncClient(address) as client:
        first, second, single = await asyncio.gather(
            client.generate_images("generator", count=5, seed=4),
            client.generate_images("generator", count=5, seed=9),
            client.generate_images("generator"),
        )
        assert list(first.images) == expected
        assert set(first.images).isdisjoint(second.images)
        assert len(single.images) == 1
        assert (first.model.name, first.usage.images, first.usage.input_tokens) == ("generator", 5, 0)
        assert first.timing.run_ms > 0
        assert server.metrics.tokens["images"] == 11
        for options, message, field, limit in INVALID_REQUESTS:
            with pytest.raises(InvalidInput) as error:
                await client.generate_images("generator", **options)
            assert (error.value.message, error.value.field, error.value.limit) == (message, field, limit)
        with pytest.raises(WrongTask, match=r"generation of images.*Describe, GenerateImages"):
            await client.generate("generator", "Once upon a time")
        description = await client.describe("generator")
        assert description.task == "generation"
        assert (description.limits["images"], description.limits["height"]) == (5, SIDE)
    assert server.metrics.codes["Generate", grpc.StatusCode.UNIMPLEMENTED.name] == 1


def test_generate_images_over_http_matches_in_process(server: ModelServer) -> None:
    with http_server(asyncio.run(build_app(server.endpoint, ready=server.is_ready))) as address:
        url = f"{address}/generate-images"
        result = requests.post(url, json={"count": 2, "seed": 4}, timeout=TIMEOUT_SECONDS).json()
        assert [base64.b64decode(image) for image in result["images"]] == server.model.generate_images(2, seed=4)
        assert result["usage"]["images"] == 2
        assert len(requests.post(url, timeout=TIMEOUT_SECONDS).json()["images"]) == 1
        for options, message, field, limit in INVALID_REQUESTS:
            response = requests.post(url, json=options, timeout=TIMEOUT_SECONDS)
            assert response.status_code == 400
            expected = {"code": "INVALID_ARGUMENT", "message": message, "field": field, "limit": limit}
            assert error_of(response) == expected
        response = requests.post(f"{address}/generate", json={"prompt": "a"}, timeout=TIMEOUT_SECONDS)
        assert response.status_code == 405
        spec = requests.get(f"{address}/openapi.json", timeout=TIMEOUT_SECONDS).json()
        assert {path for path in spec["paths"] if path.startswith("/generate")} == {"/generate-images"}
        operation = spec["paths"]["/generate-images"]["post"]
        body = operation["requestBody"]["content"]["application/json"]
        jsonschema.validate(body["example"], {**body["schema"], "components": spec["components"]})
        bounds = stated_bounds(spec, body["schema"])
        assert {bound.path for bound in bounds} == {("count",), ("seed",)}
        assert [bound for bound in bounds if not check_bound(url, {}, bound)] == []
        response_body = operation["responses"]["200"]["content"]["application/json"]
        jsonschema.validate(result, {**response_body["schema"], "components": spec["components"]})


@pytest.mark.parametrize(("target", "files"), [("four", ["0.png", "1.png", "2.png", "3.png"]), ("sheet.png", None)])
async def test_generate_images_command_saves_files(
    server: ModelServer, tmp_path: Path, target: str, files: list[str] | None
) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_commands(app)
    async with grpc_server(server) as address:
        arguments = ["call", "generator", "generate-images", "--count", "4", "--seed", "1", "--save"]
        result = await asyncio.to_thread(
            CliRunner().invoke, app, [*arguments, str(tmp_path / target), "--address", address]
        )
    assert result.exit_code == 0, result.output
    assert "4 images generated" in result.stdout
    expected = server.model.generate_images(4, seed=1)
    if files is None:
        sheet = np.asarray(Image.open(tmp_path / target)).astype(int)
        assert sheet.shape == (2 * SIDE, 2 * SIDE, 3)
        assert (sheet[SIDE:, :SIDE] == pixels(expected[2])).all()
    else:
        assert [(tmp_path / target / name).read_bytes() for name in files] == expected
