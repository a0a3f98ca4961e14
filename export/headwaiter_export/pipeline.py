"""The export pipeline: load ▸ trace ▸ optimise ▸ check parity ▸ convert precision ▸ check precision ▸ pack."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx_ir as ir

from headwaiter.package.manifest import (
    FusionReport,
    Graph,
    Manifest,
    Package,
    Parity,
    Port,
    Precision,
    PrecisionLoss,
    Preprocessing,
    State,
    digest,
)
from headwaiter_export.errors import SourceError
from headwaiter_export.families.family import Family
from headwaiter_export.packaging.staging import check_disk_space, commit, staging_directory
from headwaiter_export.packaging.weights import save_graphs
from headwaiter_export.passes.fp16 import convert_to_fp16
from headwaiter_export.passes.int8 import quantise
from headwaiter_export.passes.optimise import optimise
from headwaiter_export.request import ExportRequest, check_request
from headwaiter_export.sources.source import Source, open_source
from headwaiter_export.tracing.graph import GraphSpec, StateBinding, trace
from headwaiter_export.validation.checks import checks_for
from headwaiter_export.validation.cuda import check_cuda_ready, cpu_fallbacks
from headwaiter_export.validation.fusion import check_fusion, fused_operators, unfused_attention
from headwaiter_export.validation.parity import check_tolerance, compare_precision
from headwaiter_export.validation.runtime import Runtime

__all__ = ["ExportRequest", "export"]

StepReporter = Callable[[str], AbstractContextManager[None]]
_BYTES_PER_WEIGHT = {"fp32": 4, "fp16": 2, "int8": 1}
_DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.INT64: "int64",
    ir.DataType.INT32: "int32",
}


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The saved graphs in the requested precision and the results of the checks."""

    models: dict[str, ir.Model]
    states: Sequence[State]
    fused: FusionReport
    parity: Parity
    loss: PrecisionLoss | None
    cuda: dict[str, dict[str, str]]


def export(request: ExportRequest, step: StepReporter = lambda _: nullcontext()) -> Package:
    """Export a model and return its package, which is written completely or not at all.

    `step` is entered with the name of each pipeline step, for progress reporting. Raises `SourceError` for an invalid
    request or source and `ExportError` if a check fails.
    """
    check_request(request)
    with staging_directory(request.folder) as scratch:
        content = scratch / "package"
        content.mkdir()
        with step("load"), open_source(request.source) as source:
            _check_family(request, source.family)
            preprocessing = source.family.preprocessing(content)
        check_disk_space(scratch, _required_bytes(source.family, request.precision))
        result = _build_graphs(source.family, request.precision, scratch, content, step)
        with step("pack"):
            manifest = _build_manifest(request, source, preprocessing, result, content)
            commit(content, manifest, request.folder)
    return Package(request.folder, manifest)


def parameters(family: Family) -> int:
    return sum(weight.numel() for weight in family.model.parameters())


def _check_family(request: ExportRequest, family: Family) -> None:
    if request.task is not None and request.task != family.task:
        raise SourceError(f"{request.source} is a {family.name} model for {family.task}, not for {request.task}.")
    if family.unfused_reason is not None and not request.allow_unfused:
        raise SourceError(
            f"The attention of {family.name} cannot be fused ({family.unfused_reason}); "
            f"--allow-unfused exports it anyway."
        )


def _required_bytes(family: Family, precision: Precision) -> int:
    """Estimate the disk space of the fp32 weights and, for another precision, the converted weights."""
    bytes_per_weight = _BYTES_PER_WEIGHT["fp32"] + (_BYTES_PER_WEIGHT[precision] if precision != "fp32" else 0)
    return int(1.1 * parameters(family) * bytes_per_weight) + (8 << 20)


def _build_graphs(
    family: Family, precision: Precision, scratch: Path, content: Path, step: StepReporter
) -> BuildResult:
    graphs = family.graphs()
    models = _trace_graphs(family, graphs, step)
    fusion_report = check_fusion(family, models.values())
    states = [_state_entry(state, graph) for graph in graphs for state in graph.states]
    fp32_dir = content if precision == "fp32" else scratch / "fp32"
    fp32_dir.mkdir(exist_ok=True)
    save_graphs(models, fp32_dir)
    fp32_runtime = Runtime(fp32_dir, list(models), states)
    checks = checks_for(family)
    with step("check fp32 against torch"):
        parity = checks.check_parity(fp32_runtime)
        check_tolerance(parity)
    loss = None
    if precision != "fp32":
        with step(f"convert to {precision}"):
            models, states = _convert_precision(precision, fp32_dir, models, states)
            save_graphs(models, content)
        with step(f"check {precision} against fp32"):
            converted_runtime = Runtime(content, list(models), states)
            outputs, expected = (
                checks.sample_outputs(runtime, np.random.default_rng(1))
                for runtime in (converted_runtime, fp32_runtime)
            )
            loss = compare_precision(precision, outputs, expected, family.output_ranges)
    cuda = {name: fallbacks for name, model in models.items() if (fallbacks := cpu_fallbacks(model))}
    if precision == "fp16":
        for name, fallbacks in cuda.items():
            check_cuda_ready(name, fallbacks)
    return BuildResult(models, states, fusion_report, parity, loss, cuda)


def _trace_graphs(family: Family, graphs: Sequence[GraphSpec], step: StepReporter) -> dict[str, ir.Model]:
    models = {}
    with family.tracing():
        for graph in graphs:
            with step(f"trace {graph.name}"):
                models[graph.name] = trace(graph)
                optimise(models[graph.name])
    return models


def _convert_precision(
    precision: Precision, fp32_dir: Path, models: dict[str, ir.Model], states: list[State]
) -> tuple[dict[str, ir.Model], list[State]]:
    converted = {name: ir.load(fp32_dir / f"{name}.onnx") for name in models}
    if precision == "int8":
        for model in converted.values():
            quantise(model)
        return converted, states
    fp16_io_names = {name for state in states for name in (state.input, state.output)}
    fp16_io_names |= {str(value.name) for value in models["encoder"].graph.outputs} if "encoder" in models else set()
    for model in converted.values():
        convert_to_fp16(model, fp16_io_names)
    return converted, [state.model_copy(update={"dtype": "float16"}) for state in states]


def _build_manifest(
    request: ExportRequest, source: Source, preprocessing: Preprocessing, result: BuildResult, content: Path
) -> Manifest:
    family = source.family
    return Manifest(
        name=request.package_name,
        version=request.package_version,
        task=family.task,
        family=family.name,
        source=source.origin,
        license=source.license,
        attribution=source.attribution,
        precision=request.precision,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        headwaiter=importlib.metadata.version("headwaiter"),
        parameters=parameters(family),
        graphs={name: _graph_entry(name, model) for name, model in result.models.items()},
        states=tuple(result.states),
        fused=result.fused,
        parity=result.parity,
        loss=result.loss,
        cuda=result.cuda,
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


def _graph_entry(name: str, model: ir.Model) -> Graph:
    inputs, outputs = (tuple(map(_tensor_entry, values)) for values in (model.graph.inputs, model.graph.outputs))
    fused = fused_operators(model).total()
    return Graph(
        file=f"{name}.onnx",
        nodes=len(model.graph),
        attention=fused + unfused_attention(model),
        fused=fused,
        inputs=inputs,
        outputs=outputs,
    )


def _tensor_entry(value: ir.Value) -> Port:
    assert value.dtype is not None
    assert value.shape is not None
    axes = tuple(axis if isinstance(axis, int) else str(axis.value) for axis in value.shape)
    return Port.model_validate({"name": value.name, "dtype": _DTYPES[value.dtype], "shape": axes})


def _state_entry(state: StateBinding, graph: GraphSpec) -> State:
    axes = graph.inputs[state.input].axes
    return State.model_validate(
        {"input": state.input, "output": state.output, "dtype": "float32", "shape": axes, "kind": state.kind}
    )
