"""The registry of tasks. A row is plain data: what it names is imported on first use, so that the client and the
command line stay light.

Other distributions add tasks with the entry point group `headwaiter.tasks`; each entry point is a `TaskSpec`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

ENTRY_POINTS = "headwaiter.tasks"


@dataclass(frozen=True, slots=True)
class Example:
    """The call that `headwaiter serve` shows: an operation, its input field, and what to print of the result."""

    operation: str
    field: str = ""
    value: str | int = ""
    result: str = ""
    is_option: bool = False  # the command line takes the input as an option, the client as a keyword argument


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task: its protocol, and import strings (`module:name`) of what implements it."""

    name: str
    stubs: str  # module of the generated messages; the module with `_grpc` at its end has the servicer
    service: str  # name of the gRPC service
    task: str  # subclass of `headwaiter.tasks.task.Task`
    model: str = "headwaiter.tasks.model:Model"  # returned by `open_model`
    request_examples: str = ""  # function(method, Describe response) for the OpenAPI document
    commands: tuple[tuple[str, str], ...] = ()  # of `headwaiter call`; default: derived from the protocol
    example: Example | None = None
    variant_of: str = ""  # the task that manifests and clients see, if it is not the name

    def load_stubs(self) -> ModuleType:
        return importlib.import_module(self.stubs)

    @property
    def add_servicer(self) -> str:
        """Import path of the generated function that adds a servicer to a gRPC server."""
        return f"{self.stubs}_grpc.add_{self.service}Servicer_to_server"


def resolve(import_string: str) -> Any:
    """Import `module:name`."""
    module, _, name = import_string.partition(":")
    return getattr(importlib.import_module(module), name)


BUILT_IN_TASKS = (
    TaskSpec(
        "translation",
        "headwaiter.v1.translation_pb2",
        "Translation",
        task="headwaiter.tasks.translation:Translation",
        model="headwaiter.tasks.translation:TranslationModel",
        request_examples="headwaiter.api.http.examples:translation",
        commands=(("translate", "headwaiter.cli.call.commands:translate"),),
        example=Example("translate", "text", "Good morning.", ".text"),
    ),
    TaskSpec(
        "captioning",
        "headwaiter.v1.captioning_pb2",
        "Captioning",
        task="headwaiter.tasks.captioning:Captioning",
        model="headwaiter.tasks.captioning:CaptioningModel",
        commands=(("caption", "headwaiter.cli.call.commands:caption"),),
        example=Example("caption", "image", "samples/scene-1.png", ".text"),
    ),
    TaskSpec(
        "classification",
        "headwaiter.v1.classification_pb2",
        "Classification",
        task="headwaiter.tasks.classification:Classification",
        model="headwaiter.tasks.classification:ClassificationModel",
        request_examples="headwaiter.api.http.examples:classification",
        commands=(("classify", "headwaiter.cli.call.commands:classify"),),
        example=Example("classify", "image", "samples/sneaker.png", ".labels", is_option=True),
    ),
    TaskSpec(
        "detection",
        "headwaiter.v1.detection_pb2",
        "Detection",
        task="headwaiter.tasks.detection:Detection",
        model="headwaiter.tasks.detection:DetectionModel",
        request_examples="headwaiter.api.http.examples:detection",
        commands=(("detect", "headwaiter.cli.call.commands:detect"),),
        example=Example("detect", "image", "samples/scene-1.png", ".boxes"),
    ),
    TaskSpec(
        "policy",
        "headwaiter.v1.policy_pb2",
        "Policy",
        task="headwaiter.tasks.policy:PolicyTask",
        model="headwaiter.tasks.policy:PolicyModel",
        request_examples="headwaiter.api.http.examples:policy",
        commands=(("act", "headwaiter.cli.call.commands:act"),),
        example=Example("describe"),
    ),
    TaskSpec(
        "generation",
        "headwaiter.v1.generation_pb2",
        "Generation",
        task="headwaiter.tasks.generation:Generation",
        model="headwaiter.tasks.generation:GenerationModel",
        request_examples="headwaiter.api.http.examples:generation",
        commands=(("generate", "headwaiter.cli.call.commands:generate"),),
        example=Example("generate", "prompt", "Once upon a time", ".text"),
    ),
    TaskSpec(
        "image-generation",
        "headwaiter.v1.generation_pb2",
        "Generation",
        task="headwaiter.tasks.image_generation:ImageGeneration",
        model="headwaiter.tasks.image_generation:ImageGenerationModel",
        request_examples="headwaiter.api.http.examples:image_generation",
        commands=(("generate-images", "headwaiter.cli.call.commands:generate_images"),),
        example=Example("generate-images", "count", 4, ".images", is_option=True),
        variant_of="generation",
    ),
)


@cache
def task_specs() -> Mapping[str, TaskSpec]:
    """All tasks by name: the built-in ones, then those of entry points. Raises TypeError for an invalid entry point."""
    specs = {spec.name: spec for spec in BUILT_IN_TASKS}
    for entry_point in entry_points(group=ENTRY_POINTS):
        spec = entry_point.load()
        if not isinstance(spec, TaskSpec):
            raise TypeError(f"the entry point {entry_point.value} of {ENTRY_POINTS} is not a TaskSpec")
        if spec.name in specs:
            raise TypeError(f"the entry point {entry_point.value} of {ENTRY_POINTS} repeats the task {spec.name}")
        specs[spec.name] = spec
    return specs


def task_names() -> tuple[str, ...]:
    """The tasks that a manifest can name."""
    return tuple(name for name, spec in task_specs().items() if not spec.variant_of)
