"""Load ▸ trace ▸ optimise ▸ check ▸ change precision ▸ check again ▸ pack."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx_ir as ir

from export import graph as drawing
from export.cuda import demand_ready, fallbacks
from export.errors import SourceError
from export.family import Family
from export.fusion import demand_fusion, fused_operators, unfused_attention
from export.half import halve
from export.optimise import optimise
from export.packing import demand_space, making, put
from export.parity import compare_precision, demand
from export.quantise import quantise
from export.runtime import Runtime
from export.sources import Source, default_name, default_version, opened
from export.weights import save_graphs
from service.package import (
    NAME_PATTERN,
    Fused,
    Graph,
    Loss,
    Manifest,
    Package,
    Parity,
    Port,
    Precision,
    Preprocessing,
    State,
    Task,
    digest,
)

Step = Callable[[str], AbstractContextManager[None]]
_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}
_DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.INT64: "int64",
    ir.DataType.INT32: "int32",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be exported, and where to."""

    source: str
    task: Task | None = None
    name: str | None = None
    version: str | None = None
    precision: Precision = "fp32"
    out: Path = Path("models")
    force: bool = False
    allow_unfused: bool = False

    @property
    def package_name(self) -> str:
        return self.name if self.name is not None else default_name(self.source)

    @property
    def package_version(self) -> str:
        return self.version if self.version is not None else default_version(self.source)

    @property
    def folder(self) -> Path:
        return self.out / self.package_name / self.package_version / self.precision


@dataclass(frozen=True, slots=True)
class Built:
    """Graphs in the precision asked for, saved, with what the checks found."""

    models: dict[str, ir.Model]
    states: Sequence[State]
    fused: Fused
    parity: Parity
    loss: Loss | None
    cuda: dict[str, dict[str, str]]


def export(order: Order, step: Step = lambda _: nullcontext()) -> Package:
    """Writes the package whole or not at all. `step` is told what is being done, for whoever watches."""
    _demand_order(order)
    with making(order.folder) as scratch:
        content = scratch / "package"
        content.mkdir()
        with step("load"), opened(order.source) as source:
            _demand_family(order, source.family)
            preprocessing = source.family.preprocessing(content)
        demand_space(scratch, _needed(source.family, order.precision))
        built = _build(source.family, order.precision, scratch, content, step)
        with step("pack"):
            manifest = _manifest(order, source, preprocessing, built, content)
            put(content, manifest, order.folder)
    return Package(order.folder, manifest)


def parameters(family: Family) -> int:
    return sum(weight.numel() for weight in family.model.parameters())


def _demand_order(order: Order) -> None:
    if not NAME_PATTERN.fullmatch(order.package_name):
        raise SourceError(
            f"{order.package_name!r} is not a package name: small letters, digits, dots and dashes, the first a letter "
            f"or digit."
        )
    version = order.package_version
    if not (version.isdecimal() and int(version) > 0 and version == str(int(version))):
        raise SourceError(f"{version!r} is not a version: versions are whole numbers from 1 on.")
    if order.folder.exists() and not order.force:
        raise SourceError(f"{order.folder} is there already: give another --version, or --force to replace it.")


def _demand_family(order: Order, family: Family) -> None:
    if order.task is not None and order.task != family.task:
        raise SourceError(f"{order.source} is a {family.name} for {family.task}, not for {order.task}.")
    if family.cannot_fuse is not None and not order.allow_unfused:
        raise SourceError(
            f"{family.name} comes out unfused ({family.cannot_fuse}): --allow-unfused exports it all the same."
        )


def _needed(family: Family, precision: Precision) -> int:
    bytes_each = _BYTES["fp32"] + (_BYTES[precision] if precision != "fp32" else 0)
    return int(1.1 * parameters(family) * bytes_each) + (8 << 20)


def _build(family: Family, precision: Precision, scratch: Path, content: Path, step: Step) -> Built:
    graphs = family.graphs()
    models = _traced(family, graphs, step)
    counted = demand_fusion(family, models.values())
    states = [_state(state, graph) for graph in graphs for state in graph.states]
    full = content if precision == "fp32" else scratch / "fp32"
    full.mkdir(exist_ok=True)
    save_graphs(models, full)
    original = Runtime(full, list(models), states)
    with step("check fp32 against torch"):
        parity = family.check(original)
        demand(parity)
    loss = None
    if precision != "fp32":
        with step(f"make {precision}"):
            models, states = _lowered(precision, full, models, states)
            save_graphs(models, content)
        with step(f"check {precision} against fp32"):
            lowered = Runtime(content, list(models), states)
            got, expected = (family.trial(runtime, np.random.default_rng(1)) for runtime in (lowered, original))
            loss = compare_precision(precision, got, expected, family.ranges)
    cuda = {name: found for name, model in models.items() if (found := fallbacks(model))}
    if precision == "fp16":
        for name, found in cuda.items():
            demand_ready(name, found)
    return Built(models, states, counted, parity, loss, cuda)


def _traced(family: Family, graphs: Sequence[drawing.Graph], step: Step) -> dict[str, ir.Model]:
    models = {}
    with family.tracing():
        for graph in graphs:
            with step(f"trace {graph.name}"):
                models[graph.name] = drawing.trace(graph)
                optimise(models[graph.name])
    return models


def _lowered(
    precision: Precision, full: Path, models: dict[str, ir.Model], states: list[State]
) -> tuple[dict[str, ir.Model], list[State]]:
    lowered = {name: ir.load(full / f"{name}.onnx") for name in models}
    if precision == "int8":
        for model in lowered.values():
            quantise(model)
        return lowered, states
    handed_on = {name for state in states for name in (state.input, state.output)}
    handed_on |= {str(value.name) for value in models["encoder"].graph.outputs} if "encoder" in models else set()
    for model in lowered.values():
        halve(model, handed_on)
    return lowered, [state.model_copy(update={"dtype": "float16"}) for state in states]


def _manifest(order: Order, source: Source, preprocessing: Preprocessing, built: Built, content: Path) -> Manifest:
    family = source.family
    return Manifest(
        name=order.package_name,
        version=order.package_version,
        task=family.task,
        family=family.name,
        source=source.origin,
        license=source.license,
        attribution=source.attribution,
        precision=order.precision,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        headwaiter=importlib.metadata.version("headwaiter"),
        parameters=parameters(family),
        graphs={name: _graph(name, model) for name, model in built.models.items()},
        states=tuple(built.states),
        fused=built.fused,
        parity=built.parity,
        loss=built.loss,
        cuda=built.cuda,
        limits=family.limits(),
        preprocessing=preprocessing,
        decoding=family.decoding(),
        policy=family.policy(),
        noise=family.noise(),
        labels=family.labels(),
        multi_label=family.multi_label(),
        languages=source.languages,
        sha256={file.name: digest(file) for file in sorted(content.iterdir())},
    )


def _graph(name: str, model: ir.Model) -> Graph:
    inputs, outputs = (tuple(map(_port, values)) for values in (model.graph.inputs, model.graph.outputs))
    fused = fused_operators(model).total()
    return Graph(
        file=f"{name}.onnx",
        nodes=len(model.graph),
        attention=fused + unfused_attention(model),
        fused=fused,
        inputs=inputs,
        outputs=outputs,
    )


def _port(value: ir.Value) -> Port:
    assert value.dtype is not None
    assert value.shape is not None
    axes = tuple(axis if isinstance(axis, int) else str(axis.value) for axis in value.shape)
    return Port.model_validate({"name": value.name, "dtype": _DTYPES[value.dtype], "shape": axes})


def _state(state: drawing.State, graph: drawing.Graph) -> State:
    axes = graph.inputs[state.input].axes
    return State.model_validate(
        {"input": state.input, "output": state.output, "dtype": "float32", "shape": axes, "kind": state.kind}
    )
