"""`Model`, the base of what `open_model` returns, and helpers for the operations of its subclasses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headwaiter.engine.admission import AdmissionController
from headwaiter.engine.futures import Pending
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Manifest, Package
from headwaiter.tasks.task import Task

TaskT = TypeVar("TaskT", bound=Task[Any])
Answer = TypeVar("Answer")
Item = TypeVar("Item")
ImageInput = bytes | str | Path


class Model(Generic[TaskT]):
    """A task with its running engine. Usable as a context manager; subclasses have the operations of their task."""

    def __init__(self, task: TaskT) -> None:
        self.task = task
        self._admission = _admission(task)
        self.engine.start()
        try:
            task.warm_up()
        except BaseException:
            self.engine.close(drain=False)
            raise

    @property
    def package(self) -> Package:
        return self.task.package

    @property
    def manifest(self) -> Manifest:
        return self.task.manifest

    @property
    def engine(self) -> Engine[Any]:
        return self.task.engine

    @property
    def counters(self) -> dict[str, float]:
        return self.engine.counters.snapshot()

    def admit(self) -> None:
        """Raise QueueFullError if a request would wait for longer than the `limits.max_queue_wait_ms` that was set."""
        if self._admission is not None:
            self._admission.admit()

    def submit_all(
        self, inputs: Sequence[Item], submit: Callable[[Item, str], Pending[Answer]], field: str
    ) -> list[Answer]:
        """Submit all inputs and wait for their results; if one input is rejected, all are.

        Long inputs are submitted first, so that fewer slots are idle while the last sequences finish.
        """
        self.admit()
        longest_first = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))  # type: ignore[arg-type]
        pending: dict[int, Pending[Answer]] = {}
        try:
            for index in longest_first:
                pending[index] = submit(inputs[index], f"{field}[{index}]")
            return [pending[index].result() for index in range(len(inputs))]
        except BaseException:
            for request in pending.values():
                request.cancel()
            raise

    def close(self, *, drain: bool = True) -> None:
        """Stop the engine. Pending requests are finished if `drain`, otherwise they fail."""
        self.engine.close(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


def _admission(task: Task[Any]) -> AdmissionController | None:
    """In process, the caller controls the load: nothing is rejected unless a limit was set."""
    limits = task.settings.limits
    if "max_queue_wait_ms" not in limits.model_fields_set:
        return None
    return AdmissionController(task.engine, name=task.manifest.name, max_wait_seconds=limits.max_queue_wait_ms / 1e3)


def as_list(value: Any) -> list[Any]:
    """Return the items of a list or tuple, or a list of the value itself."""
    return list(value) if isinstance(value, list | tuple) else [value]


def read_images(images: ImageInput | Sequence[ImageInput]) -> list[bytes]:
    return [read_image(image) for image in as_list(images)]


def read_image(image: ImageInput) -> bytes:
    return image if isinstance(image, bytes) else Path(image).read_bytes()
