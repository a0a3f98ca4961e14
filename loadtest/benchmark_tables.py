"""Markdown tables of the engine benchmark and the serving-overhead benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headwaiter_export.generated_sections import table
from loadtest.results_file import FOLDER

_SEARCHES = {1: "greedy", 4: "4 beams"}
_TRANSLATORS = ("headwaiter fp32", "headwaiter int8", "ctranslate2 fp32", "ctranslate2 int8", "transformers fp32")
_ENCODERS = (
    "headwaiter fp32",
    "onnxruntime fp32",
    "openvino fp32",
    "torch fp32",
    "headwaiter int8",
    "onnxruntime int8",
)
_TITLES = {"ctranslate2": "CTranslate2", "onnxruntime": "bare ONNX Runtime", "openvino": "OpenVINO"}
Rows = Sequence[dict[str, Any]]


def engine(file: Path = FOLDER / "engine.json") -> str:
    results = json.loads(file.read_text(encoding="utf-8"))
    translation, encoders, policy = (results["parts"][name] for name in ("translation", "encoders", "policy"))
    steps = {row["position"]: row["milliseconds"] for row in policy["measured"]}
    paragraphs = (
        f"On {format_machine(translation['machine'])}:",
        _translation(translation["measured"]),
        f"chrF of int8 output against fp32 output, greedy, concurrency 64: {_chrf(translation['measured'])}.",
        _encoders(encoders["measured"]),
        f"A policy step takes {steps[5]:.2f} ms at position 5 of an episode and {steps[100]:.2f} ms at position 100.",
        list_targets(results["targets"]),
    )
    return "\n\n".join(paragraphs) + "\n"


def overhead(file: Path = FOLDER / "overhead.json") -> str:
    results = json.loads(file.read_text(encoding="utf-8"))
    paragraphs = (
        f"On {format_machine(results['latency']['machine'])}:",
        _latency(results["latency"]["rows"]),
        _saturation(results["throughput"]["rows"]),
        _overload(results["overload"]["rows"]),
        list_targets(results["targets"]),
    )
    return "\n\n".join(paragraphs) + "\n"


def format_machine(machine: dict[str, Any]) -> str:
    return f"{machine['cores']} × {machine['cpu']} ({machine.get('vectors', 'avx2')})"


def list_targets(targets: Rows) -> str:
    """Count the targets that were met and list those that were missed."""
    missed = [target for target in targets if target["result"].startswith("missed")]
    lines = [f"Targets met: {len(targets) - len(missed)} of {len(targets)}." + (" Missed:" if missed else "")]
    lines += [""] if missed else []
    lines += [
        f"- {target['target']}: {_format_required(target['required'])}, measured {target['measured']:,.4g}"
        for target in missed
    ]
    return "\n".join(lines)


def _format_required(required: Any) -> str:
    return required if isinstance(required, str) else f"{required:,.4g}"


def _titles(backends: Iterable[str]) -> list[str]:
    names = (backend.split() for backend in backends)
    return [f"{_TITLES.get(engine, engine)} {precision}" for engine, precision in names]


def _translation(rows: Rows) -> str:
    rates = {(row["beams"], row["concurrency"], row["backend"]): row["sentences_per_second"] for row in rows}
    return table(
        ("search", "concurrency", *_titles(_TRANSLATORS)),
        (
            (
                _SEARCHES[beams],
                str(concurrency),
                *(_rate_with_ratio(rates, beams, concurrency, backend) for backend in _TRANSLATORS),
            )
            for beams, concurrency in dict.fromkeys((row["beams"], row["concurrency"]) for row in rows)
        ),
    )


def _rate_with_ratio(rates: dict[tuple[int, int, str], float], beams: int, concurrency: int, backend: str) -> str:
    """Format a rate; Headwaiter's includes the ratio to CTranslate2 in the same precision."""
    rate, precision = rates[beams, concurrency, backend], backend.split()[1]
    ratio = rate / rates[beams, concurrency, f"ctranslate2 {precision}"]
    return f"{rate:.1f} ({ratio:.2f} ×)" if backend.startswith("headwaiter") else f"{rate:.1f}"


def _chrf(rows: Rows) -> str:
    scores = {row["backend"]: row["chrf_vs_own_fp32"] for row in rows if (row["beams"], row["concurrency"]) == (1, 64)}
    return ", ".join(f"{_titles([name])[0]} {scores[name]:.1f}" for name in ("headwaiter int8", "ctranslate2 int8"))


def _encoders(rows: Rows) -> str:
    rates = {(row["model"], row["backend"]): f"{row['items_per_second']:.1f}" for row in rows}
    models = sorted({row["model"] for row in rows}, reverse=True)
    return table(
        ("encoder, items/s", *_titles(_ENCODERS)),
        ((model, *(rates[model, backend] for backend in _ENCODERS)) for model in models),
    )


def _latency(rows: Rows) -> str:
    servers = {"plain grpc.aio": "plain grpc.aio server, same servicer", "headwaiter serve": "`headwaiter serve`"}
    by_server = {(row["server"], row["callers"]): row for row in rows}
    return table(
        ("trivial model", "requests/s, 1 client", "p50", "p99", "requests/s, 16 clients"),
        (
            (
                title,
                f"{by_server[server, 1]['calls_per_second']:.0f}",
                *(f"{by_server[server, 1][quantile]:.1f} ms" for quantile in ("p50_ms", "p99_ms")),
                f"{by_server[server, 16]['calls_per_second']:.0f}",
            )
            for server, title in servers.items()
        ),
    )


def _saturation(rows: Rows) -> str:
    return table(
        (
            "inputs/s at saturation",
            "in process, all inputs known upfront",
            "in process, concurrent clients",
            "served",
            "served ÷ in process",
            "ratio without the clients' CPU time",
        ),
        (
            (
                row["model"],
                *(f"{row[name]:.1f}" for name in ("in_process_offline", "in_process", "served")),
                *(f"{row[name]:.2f}" for name in ("ratio", "ratio_excluding_clients")),
            )
            for row in rows
        ),
    )


def _overload(rows: Rows) -> str:
    results = table(
        (
            "at five times the capacity",
            "requests/s, peak",
            "offered",
            "answered",
            "answered ÷ peak",
            "rejections, p95",
            "accepted, p95",
            "without overload, p95",
            "other errors",
        ),
        (
            (
                f"{row['model']}, {row['transport']}",
                *(f"{row[name]:.0f}" for name in ("normal", "offered", "answered")),
                f"{row['goodput']:.2f}",
                f"{row['rejected_p95_ms']:.0f} ms",
                *(f"{row[name] / 1e3:.1f} s" for name in ("answered_p95_ms", "normal_p95_ms")),
                str(row["other_failures"]),
            )
            for row in rows
        ),
    )
    return f"{results}\n\nThe replica is pinned to one core, clients and HAProxy to the others."
