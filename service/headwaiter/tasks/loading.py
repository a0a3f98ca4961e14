"""`open_model` runs a model package in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from headwaiter.engine.factory import open_engine
from headwaiter.engine.session import Session
from headwaiter.engine.settings import ModelSettings
from headwaiter.engine.settings_errors import parse_settings
from headwaiter.package.manifest import Package, PackageError, Precision, open_package, verify
from headwaiter.protocol.tasks import resolve, task_specs
from headwaiter.tasks.model import Model
from headwaiter.tasks.task import Task

if TYPE_CHECKING:
    from headwaiter.tasks.captioning import CaptioningModel
    from headwaiter.tasks.classification import ClassificationModel
    from headwaiter.tasks.detection import DetectionModel
    from headwaiter.tasks.generation import GenerationModel
    from headwaiter.tasks.image_generation import ImageGenerationModel
    from headwaiter.tasks.policy import PolicyModel
    from headwaiter.tasks.translation import TranslationModel

AnyPath = str | Path


class Options(TypedDict, total=False):
    """Which package to open, and the settings of `ModelSettings` that differ from their defaults."""

    version: str | None
    precision: Precision | None
    device: Literal["auto", "cpu", "cuda"]
    threads: int | None
    max_sequences: int
    run_timeout_s: int
    batch: Mapping[str, int]
    limits: Mapping[str, int]


@overload
def open_model(path: AnyPath, task: Literal["translation"], **options: Unpack[Options]) -> TranslationModel: ...
@overload
def open_model(path: AnyPath, task: Literal["captioning"], **options: Unpack[Options]) -> CaptioningModel: ...
@overload
def open_model(path: AnyPath, task: Literal["classification"], **options: Unpack[Options]) -> ClassificationModel: ...
@overload
def open_model(path: AnyPath, task: Literal["detection"], **options: Unpack[Options]) -> DetectionModel: ...
@overload
def open_model(path: AnyPath, task: Literal["policy"], **options: Unpack[Options]) -> PolicyModel: ...
@overload
def open_model(path: AnyPath, task: Literal["generation"], **options: Unpack[Options]) -> GenerationModel: ...
@overload
def open_model(
    path: AnyPath, task: Literal["image-generation"], **options: Unpack[Options]
) -> ImageGenerationModel: ...
@overload
def open_model(path: AnyPath, task: str | None = ..., **options: Unpack[Options]) -> Any: ...
def open_model(path: AnyPath, task: str | None = None, **options: Unpack[Options]) -> Any:
    """Open, verify and warm up the package at `models/NAME`.

    `task` is optional: with it, a package for another task is rejected, and type checkers know the operations of the
    model that is returned. The other options select a version and precision, or are keys of a model in serve.yaml, for
    example `max_sequences=8, limits={"new_tokens": 64}`. Raises `PackageError` for the package and `SettingsError` for
    a setting.
    """
    settings: dict[str, Any] = {**options}
    version, precision = settings.pop("version", None), settings.pop("precision", None)
    checked = parse_settings(settings)
    package = open_package(path, version=version, precision=precision)
    if task not in (None, package.manifest.task_key):
        raise PackageError(f"{path} is a package for {package.manifest.task_key}, not for {task}.")
    return load_model(package, checked)


def load_model(package: Package, settings: ModelSettings) -> Model[Task[Any]]:
    """As `open_model`, for a package that is open already."""
    task = load_task(package, settings)
    model: Model[Task[Any]] = resolve(task_specs()[package.manifest.task_key].model)(task)
    return model


def load_task(package: Package, settings: ModelSettings) -> Task[Any]:
    """Verify a package and open its task with an engine that is not started."""
    verify(package)
    task_class: type[Task[Any]] = resolve(task_specs()[package.manifest.task_key].task)
    session = Session(package, device=settings.device, threads=settings.threads)
    engine = open_engine(session, settings, max_prompt_tokens=task_class.max_prompt_tokens)
    return task_class(package, engine, settings)
