"""Opens the task of a package without starting its engine."""

from __future__ import annotations

from typing import Any, TypeVar

from headwaiter.engine.settings import ModelSettings
from headwaiter.package.manifest import Package
from headwaiter.tasks.loading import load_task
from headwaiter.tasks.task import Task

TaskT = TypeVar("TaskT", bound=Task[Any])


def open_task(task_class: type[TaskT], package: Package, **settings: Any) -> TaskT:
    task = load_task(package, ModelSettings.model_validate({"threads": 1, **settings}))
    assert isinstance(task, task_class)
    return task
