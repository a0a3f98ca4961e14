"""Every architecture of the zoo: independence of rows and of later tokens, export, serving and training."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch

from headwaiter import open_model
from headwaiter.package.manifest import Precision, open_package
from headwaiter_export import generated_sections
from headwaiter_export.errors import SourceError
from headwaiter_export.pipeline import ExportRequest, export
from headwaiter_export.zoo import readme_table
from headwaiter_export.zoo.checkpoint import Checkpoint
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.cartpole import CartPole
from headwaiter_export.zoo.data.copying import Copying
from headwaiter_export.zoo.data.digits import Digits
from headwaiter_export.zoo.data.distilled_digits import DistilledDigits
from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.data.masked_cartpole import MaskedCartPole
from headwaiter_export.zoo.data.reversing import Reversing
from headwaiter_export.zoo.data.scenes import SceneCaptions, Scenes
from headwaiter_export.zoo.model import (
    AutoregressiveModel,
    Generator,
    ImageClassifier,
    ImageGenerator,
    TextClassifier,
    ZooModel,
)
from headwaiter_export.zoo.recurrent import RecurrentModel
from headwaiter_export.zoo.registry import architectures
from headwaiter_export.zoo.training import train
from headwaiter_export.zoo.training_result import evaluate_checkpoint
from tests.marks_kit import slow_except

ARCHITECTURES = architectures()


class ShortTraining(NamedTuple):
    """A few seconds of training: options for an easy dataset, steps, and the number of examples to evaluate."""

    options: dict[str, Any]
    steps: int
    max_examples: int = 100


SHORT_TRAININGS: dict[type[Dataset], ShortTraining] = {
    Reversing: ShortTraining({"length": 4}, steps=120),
    Copying: ShortTraining({"length": 2}, steps=100),
    ListOps: ShortTraining({"length": 8}, steps=200, max_examples=200),
    SceneCaptions: ShortTraining({"image": 32, "shapes": 1}, steps=150),
    Scenes: ShortTraining({"image": 32, "shapes": 1}, steps=150),
    Digits: ShortTraining({}, steps=60),
    DistilledDigits: ShortTraining({}, steps=60),
    CartPole: ShortTraining({}, steps=60, max_examples=3),
    MaskedCartPole: ShortTraining(
        {"context": 8, "num_environments": 16, "exploration_steps": 200, "discount": 0.95, "average_rate": 0.03},
        steps=250,
        max_examples=5,
    ),
}
SIZE_OVERRIDES = {"linformer": {"kept": 4}}  # `kept` must not exceed the short length
# Every export is validated against torch in fp32 first, so one precision per architecture is enough.
PRECISIONS: dict[str, Precision] = dict(zip(ARCHITECTURES, cycle(get_args(Precision)), strict=False))


@cache
def dataset(name: str) -> Dataset:
    recipe = ARCHITECTURES[name].recipe
    return recipe.data(**recipe.options)


def make_untrained(name: str) -> ZooModel:
    torch.manual_seed(5)
    architecture = ARCHITECTURES[name]
    model = architecture.model(architecture.sizes(dataset(name)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))  # zero-initialized weights would hide errors
    return model.eval()


@pytest.mark.parametrize(("name", "precision"), slow_except(PRECISIONS.items(), "fnet", "transformer"))
def test_export_untrained_model_can_be_served(name: str, precision: Precision, tmp_path: Path) -> None:
    """The export includes the pipeline's own validation."""
    data, model = dataset(name), make_untrained(name)
    folder = tmp_path / "checkpoint"
    checkpoint = Checkpoint(model, data.preprocessing(folder), data.labels(), data.decoding())
    checkpoint.save(folder)
    package = export(ExportRequest(str(folder), name=name, precision=precision, out=tmp_path / "models"))
    manifest = package.manifest
    assert (manifest.task, manifest.family) == (ARCHITECTURES[name].task, name)
    assert (
        manifest.fused.attention == manifest.fused.fused
        or model.no_fused_operator_reason == manifest.fused.unfused_reason
    )
    with open_model(open_package(package.folder).folder) as served:
        assert np.isfinite(data.evaluate(served, max_examples=3))


@pytest.mark.parametrize(
    "name", [name for name, entry in ARCHITECTURES.items() if issubclass(entry.model, TextClassifier)]
)
def test_text_classifier_padding_and_other_rows_have_no_effect(name: str) -> None:
    model = make_untrained(name)
    rng = np.random.default_rng(1)
    width = model.sizes.length
    lengths = torch.tensor([width, width // 2, 1], dtype=torch.int32)
    tokens = torch.from_numpy(rng.integers(1, model.sizes.vocabulary, (3, width)))
    with torch.no_grad():
        together = model(tokens, lengths)
        for row, length in enumerate(lengths.tolist()):
            padded = -(-length // 8) * 8
            alone = model(tokens[row : row + 1, : min(padded, width)], lengths[row : row + 1])
            torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-4)
    assert together.shape == (3, model.sizes.classes)


@pytest.mark.parametrize(
    "name", [name for name, entry in ARCHITECTURES.items() if issubclass(entry.model, ImageClassifier)]
)
def test_image_classifier_other_rows_have_no_effect(name: str) -> None:
    model = make_untrained(name)
    pixels = torch.randn(3, 3, model.sizes.image, model.sizes.image)
    with torch.no_grad():
        together = model(pixels)
        alone = torch.cat([model(image[None]) for image in pixels])
    assert together.shape == (3, model.sizes.classes)
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=1e-4)


def encode_source(model: Any) -> tuple[Any, ...]:
    """Arguments of `forward` after the tokens: none, or the encoding of two sources or images."""
    if isinstance(model, Generator):
        return ()
    if model.task == "captioning":
        return (model.encode(torch.randn(2, 3, model.sizes.image, model.sizes.image)),)
    lengths = torch.tensor([model.sizes.source, 3], dtype=torch.int32)
    return model.encode(torch.randint(1, model.sizes.vocabulary, (2, model.sizes.source)), lengths), lengths


@pytest.mark.parametrize(
    "name",
    [name for name, entry in ARCHITECTURES.items() if issubclass(entry.model, (AutoregressiveModel, RecurrentModel))],
)
def test_autoregressive_model_later_tokens_have_no_effect(name: str) -> None:
    """The same test of policies is in test_policies.py."""
    model: Any = make_untrained(name)
    tokens = torch.randint(1, model.sizes.vocabulary, (2, model.sizes.room - 1))
    changed = tokens.clone()
    changed[:, 6:] = torch.randint(1, model.sizes.vocabulary, changed[:, 6:].shape)
    with torch.no_grad():
        source = encode_source(model)
        before, after = model(tokens, *source), model(changed, *source)
    assert before.shape == (*tokens.shape, model.sizes.vocabulary)
    torch.testing.assert_close(before[:, :6], after[:, :6], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@pytest.mark.slowest
@pytest.mark.parametrize(
    "name", [name for name, entry in ARCHITECTURES.items() if not issubclass(entry.model, ImageGenerator)]
)
def test_train_briefly_beats_chance(name: str, tmp_path: Path) -> None:
    """Image generators are tested in test_image_generators.py."""
    architecture = ARCHITECTURES[name]
    short = SHORT_TRAININGS[architecture.recipe.data]
    sizes = {**architecture.recipe.sizes, **SIZE_OVERRIDES.get(name, {})}
    easy = replace(architecture, recipe=replace(architecture.recipe, options=short.options, sizes=sizes))
    data, progress = train(easy, tmp_path, steps=short.steps)
    training_result = evaluate_checkpoint(easy, tmp_path, data, progress, max_examples=short.max_examples)
    assert training_result.value >= max(2 * data.chance_level, 0.1)


def test_export_int8_short_max_length_succeeds(tmp_path: Path) -> None:
    """Precisions are compared on texts that fit `max_length`."""
    architecture = ARCHITECTURES["transformer"]
    train(replace(architecture, recipe=replace(architecture.recipe, options={"length": 3})), tmp_path, steps=1)
    request = ExportRequest(str(tmp_path), name="brief", precision="int8", out=tmp_path / "models")
    assert export(request).manifest.limits["max_length"] < 12


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"system": "vti"}, ("The zoo has no architecture 'vti'; did you mean vit",)),
        ({"system": "bert"}, ("config.json", "'image'", "size, heads")),
        ({"sizes": {"heads": 5}}, ("size is 64", "heads (5)")),
        ({"sizes": {"wings": 2}}, ("config.json", "'wings'", "size, heads")),
        ({"sizes": {"layers": 0}}, ("layers: ", "greater than 0")),
        ({"sizes": {"hidden": 96}}, ("stack.0.feed_forward.0.weight", "[128, 64]", "[96, 64]")),
    ],
)
def test_export_invalid_config_rejected(change: dict[str, Any], fragments: tuple[str, ...], tmp_path: Path) -> None:
    train(ARCHITECTURES["vit"], tmp_path, steps=1)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {**change, "sizes": {**config["sizes"], **change.get("sizes", {})}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError) as caught:
        export(ExportRequest(str(tmp_path), name="vit", out=tmp_path / "models"))
    assert all(fragment in str(caught.value) for fragment in fragments)
    assert not (tmp_path / "models" / "vit").exists()


@pytest.mark.slow
def test_registry_without_dataset_libraries_lists_all_architectures() -> None:
    """Exporting must not require the libraries that only training needs."""
    program = (
        "import sys; sys.modules |= dict.fromkeys(['gymnasium', 'sklearn', 'scipy']); "
        "from headwaiter_export.zoo.registry import architectures; print(len(architectures()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (result.stdout.strip(), result.returncode) == (str(len(ARCHITECTURES)), 0), result.stderr


def test_docs_table_is_up_to_date() -> None:
    assert generated_sections.read_section("zoo", readme_table.PAGE) == readme_table.table(), (
        "run `python -m headwaiter_export.zoo.readme_table`"
    )
