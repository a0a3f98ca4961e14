"""Images out of noise, in process, over gRPC and over HTTP: the same seed makes the same ones, whoever else asks."""

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

from export.pipeline import Order, export
from export.zoo.checkpoint import Checkpoint
from export.zoo.sizes import PainterSizes
from export.zoo.systems.transgan import TransGan
from loadtest.plain import listening as listening_grpc
from service import open_model
from service.calls import add_commands
from service.client import AsyncClient, InvalidInput, WrongTask
from service.host import HostArgs, ModelHost
from service.ingress.http.model import build_app
from service.package import Package, Precision, Preprocessing
from service.tasks.errors import InputError
from tests.counts_kit import Counts
from tests.http_kit import error_of, listening

SIDE = 8
SIZES = PainterSizes(size=64, heads=2, layers=1, image=SIDE, start=2, noise=12)
REFUSALS = [
    ({"count": 0}, "count is 0; it must be at least 1", "count", 1),
    ({"count": -3}, "count is -3; it must be at least 1", "count", 1),
    ({"count": 6}, "count is 6; the limit is 5", "count", 5),
    ({"seed": -1}, "seed is -1; it must be at least 0", "seed", 0),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("painter")
    torch.manual_seed(3)
    model = TransGan(SIZES)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    Checkpoint(model, Preprocessing()).save(folder)
    return folder


@pytest.fixture(scope="module")
def package(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    return export(Order(str(checkpoint), name="painter", out=tmp_path_factory.mktemp("models")))


@pytest.fixture
def host(package: Package) -> Iterator[ModelHost]:
    found = ModelHost(HostArgs(name="painter", folder=package.folder, threads=1, limits={"images": 5}), Counts())
    yield found
    found.close()


def pixels(file: bytes) -> np.ndarray:
    picture = Image.open(io.BytesIO(file))
    assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (SIDE, SIDE))
    return np.asarray(picture).astype(int)


def test_pixels_are_those_of_torch(checkpoint: Path, package: Package) -> None:
    model = TransGan(SIZES)
    model.load_state_dict(load_file(checkpoint / "model.safetensors"))
    noise = np.stack([np.random.default_rng((7, index)).standard_normal(12, np.float32) for index in range(3)])
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(noise)).numpy().transpose(0, 2, 3, 1)
    with open_model(package.folder, threads=1) as served:
        made = np.stack([pixels(file) for file in served.generate_images(3, seed=7)])
    assert np.abs(made - 255 * expected).max() < 0.51
    assert made.std(0).max() > 1


def test_the_critic_stays_behind(checkpoint: Path, package: Package) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    critic = sum(value.numel() for name, value in weights.items() if name.startswith("critic."))
    assert critic > 0
    assert package.manifest.parameters == sum(value.numel() for value in weights.values()) - critic


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_lower_precisions(checkpoint: Path, tmp_path: Path, precision: Precision) -> None:
    order = Order(str(checkpoint), name="painter", precision=precision, out=tmp_path)
    with open_model(export(order).folder, threads=1) as served:
        assert len({pixels(file).tobytes() for file in served.generate_images(4, seed=1)}) == 4


def test_a_seed_makes_the_same_images_alone_and_beside_others(package: Package) -> None:
    with open_model(package.folder, threads=1) as served:
        several = served.generate_images(40, seed=11)
        others = [served.submit(each) for each in served.task.draw(30, seed=5)]
        again = served.generate_images(3, seed=11)
        assert served.generate_images(1, seed=11) == several[:1]
        assert again == several[:3]
        assert len(set(several)) == 40
        assert served.generate_images(1, seed=12) != several[:1]
        assert served.generate_images() != served.generate_images()
        assert served.meters["row_steps"] > served.meters["steps"]
        for each in others:
            each.result()


@pytest.mark.parametrize(("given", "sentence", "field", "limit"), REFUSALS)
def test_refusals_in_process(package: Package, given: dict[str, int], sentence: str, field: str, limit: int) -> None:
    with open_model(package.folder, threads=1, images=5) as served:
        with pytest.raises(InputError) as refused:
            served.generate_images(**given)
        assert (str(refused.value), refused.value.field, refused.value.limit) == (sentence, field, limit)


async def test_over_grpc(package: Package, host: ModelHost) -> None:
    with open_model(package.folder, threads=1) as served:
        expected = served.generate_images(5, seed=4)
    async with listening_grpc(host) as address, AsyncClient(address) as client:
        first, second, single = await asyncio.gather(
            client.generate_images("painter", count=5, seed=4),
            client.generate_images("painter", count=5, seed=9),
            client.generate_images("painter"),
        )
        assert list(first.images) == expected
        assert set(first.images).isdisjoint(second.images)
        assert len(single.images) == 1
        assert (first.model.name, first.usage.images, first.usage.input_tokens) == ("painter", 5, 0)
        assert first.timing.run_ms > 0
        assert host.metrics.tokens["images"] == 11
        for given, sentence, field, limit in REFUSALS:
            with pytest.raises(InvalidInput) as refused:
                await client.generate_images("painter", **given)
            assert (refused.value.message, refused.value.field, refused.value.limit) == (sentence, field, limit)
        with pytest.raises(WrongTask) as wrong:
            await client.generate("painter", "Once upon a time")
        does = "painter does generation of images: it has Describe, GenerateImages, not Generate"
        assert wrong.value.message == does
        told = await client.describe("painter")
        assert (told.task, told.limits["images"], told.limits["height"]) == ("generation", 5, SIDE)
    assert host.metrics.codes["Generate", grpc.StatusCode.UNIMPLEMENTED.name] == 1


def test_over_http(host: ModelHost) -> None:
    with listening(asyncio.run(build_app(host.endpoint, ready=host.is_ready))) as address:
        answer = requests.post(f"{address}/generate-images", json={"count": 2, "seed": 4}).json()
        assert [base64.b64decode(image) for image in answer["images"]] == host.model.generate_images(2, seed=4)
        assert answer["usage"]["images"] == 2
        assert len(requests.post(f"{address}/generate-images").json()["images"]) == 1
        for given, sentence, field, limit in REFUSALS:
            response = requests.post(f"{address}/generate-images", json=given)
            assert response.status_code == 400
            expected = {"code": "INVALID_ARGUMENT", "message": sentence, "field": field, "limit": limit}
            assert error_of(response) == expected
        response = requests.post(f"{address}/generate", json={"prompt": "a"})
        assert response.status_code == 405
        spec = requests.get(f"{address}/openapi.json").json()
        assert {path for path in spec["paths"] if path.startswith("/generate")} == {"/generate-images"}
        body = spec["paths"]["/generate-images"]["post"]["requestBody"]["content"]["application/json"]
        jsonschema.validate(body["example"], {**body["schema"], "components": spec["components"]})
        answered = spec["paths"]["/generate-images"]["post"]["responses"]["200"]["content"]["application/json"]
        jsonschema.validate(answer, {**answered["schema"], "components": spec["components"]})


@pytest.mark.parametrize(("target", "files"), [("four", ["0.png", "1.png", "2.png", "3.png"]), ("sheet.png", None)])
async def test_the_command_saves(host: ModelHost, tmp_path: Path, target: str, files: list[str] | None) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_commands(app)
    async with listening_grpc(host) as address:
        given = ["call", "painter", "generate-images", "--count", "4", "--seed", "1", "--save", str(tmp_path / target)]
        result = await asyncio.to_thread(CliRunner().invoke, app, [*given, "--address", address])
    assert result.exit_code == 0, result.output
    assert "4 images made" in result.stdout
    made = host.model.generate_images(4, seed=1)
    if files is None:
        sheet = np.asarray(Image.open(tmp_path / target)).astype(int)
        assert sheet.shape == (2 * SIDE, 2 * SIDE, 3)
        assert (sheet[SIDE:, :SIDE] == pixels(made[2])).all()
    else:
        assert [(tmp_path / target / name).read_bytes() for name in files] == made
