"""The README's tables of the benchmarks: the engine beside its peers, and what the way through Serve costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from loadtest.results import FOLDER

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
    stored = json.loads(file.read_text(encoding="utf-8"))
    translation, encoders, policy = (stored["parts"][name] for name in ("translation", "encoders", "policy"))
    steps = {row["position"]: row["milliseconds"] for row in policy["measured"]}
    parts = (
        f"On {machine(translation['machine'])}:",
        _translation(translation["measured"]),
        f"chrF of the int8 answers against fp32's, greedy, 64 at once: {_chrf(translation['measured'])}.",
        _encoders(encoders["measured"]),
        f"A step of a policy takes {steps[5]:.2f} ms at position 5 of an episode, {steps[100]:.2f} ms at position 100.",
        missed(stored["targets"]),
    )
    return "\n\n".join(parts) + "\n"


def overhead(file: Path = FOLDER / "overhead.json") -> str:
    stored = json.loads(file.read_text(encoding="utf-8"))
    parts = (
        f"On {machine(stored['latency']['machine'])}:",
        _latency(stored["latency"]["rows"]),
        _saturation(stored["throughput"]["rows"]),
        *(_flooded(row) for row in stored["overload"]["rows"]),
        missed(stored["targets"]),
    )
    return "\n\n".join(parts) + "\n"


def machine(about: dict[str, Any]) -> str:
    return f"{about['cores']} × {about['cpu']} ({about.get('vectors', 'avx2')})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def missed(targets: Rows) -> str:
    """Those that were met are counted only."""
    missing = [each for each in targets if each["result"].startswith("missed")]
    lines = [f"Targets met: {len(targets) - len(missing)} of {len(targets)}." + (" Missed:" if missing else "")]
    lines += [""] if missing else []
    lines += [f"- {each['target']}: {_wanted(each['wanted'])}, measured {each['measured']:,.4g}" for each in missing]
    return "\n".join(lines)


def _wanted(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else f"{wanted:,.4g}"


def _titles(contestants: Iterable[str]) -> list[str]:
    parts = (contestant.split() for contestant in contestants)
    return [f"{_TITLES.get(name, name)} {precision}" for name, precision in parts]


def _translation(rows: Rows) -> str:
    rates = {(row["beams"], row["at_once"], row["contestant"]): row["sentences_per_second"] for row in rows}
    return table(
        ("search", "at once", *_titles(_TRANSLATORS)),
        (
            (_SEARCHES[beams], str(at_once), *(_beside(rates, beams, at_once, each) for each in _TRANSLATORS))
            for beams, at_once in dict.fromkeys((row["beams"], row["at_once"]) for row in rows)
        ),
    )


def _beside(rates: dict[tuple[int, int, str], float], beams: int, at_once: int, contestant: str) -> str:
    """With the ratio to CTranslate2 in the same precision, where it is ours."""
    rate, precision = rates[beams, at_once, contestant], contestant.split()[1]
    ratio = rate / rates[beams, at_once, f"ctranslate2 {precision}"]
    return f"{rate:.1f} ({ratio:.2f} ×)" if contestant.startswith("headwaiter") else f"{rate:.1f}"


def _chrf(rows: Rows) -> str:
    found = {row["contestant"]: row["chrf_own_fp32"] for row in rows if (row["beams"], row["at_once"]) == (1, 64)}
    return ", ".join(f"{_titles([name])[0]} {found[name]:.1f}" for name in ("headwaiter int8", "ctranslate2 int8"))


def _encoders(rows: Rows) -> str:
    rates = {(row["model"], row["contestant"]): f"{row['items_per_second']:.1f}" for row in rows}
    models = sorted({row["model"] for row in rows}, reverse=True)
    return table(
        ("encoder, items/s", *_titles(_ENCODERS)),
        ((model, *(rates[model, each] for each in _ENCODERS)) for model in models),
    )


def _latency(rows: Rows) -> str:
    ways = {"plain grpc.aio": "plain grpc.aio server, same servicer", "headwaiter serve": "`headwaiter serve`"}
    found = {(row["way"], row["callers"]): row for row in rows}
    return table(
        ("a trivial model", "calls/s, 1 caller", "p50", "p99", "calls/s, 16 callers"),
        (
            (
                title,
                f"{found[way, 1]['calls_per_second']:.0f}",
                *(f"{found[way, 1][share]:.1f} ms" for share in ("p50_ms", "p99_ms")),
                f"{found[way, 16]['calls_per_second']:.0f}",
            )
            for way, title in ways.items()
        ),
    )


def _saturation(rows: Rows) -> str:
    return table(
        (
            "at saturation, inputs/s",
            "in process, all known at once",
            "in process, callers as served",
            "served",
            "ratio",
            "ratio, callers' CPU left out",
        ),
        (
            (
                row["model"],
                *(f"{row[name]:.1f}" for name in ("at_once", "in_process", "served")),
                *(f"{row[name]:.2f}" for name in ("ratio", "ratio_without_callers")),
            )
            for row in rows
        ),
    )


def _flooded(row: dict[str, Any]) -> str:
    return (
        f"At five times what it answers ({row['offered']:.0f} calls a second where {row['normal']:.0f} are normal; the "
        f"replica on a core of its own, callers and HAProxy on the other), {row['model']} goes on with "
        f"{row['goodput']:.2f} of its normal rate. What is accepted takes {row['answered_p95_ms'] / 1e3:.1f} s (p95; "
        f"normal {row['normal_p95_ms'] / 1e3:.1f} s), the others are refused within {row['refused_p95_ms']:.0f} ms "
        f"(p95), and {row['other_failures']} calls fail otherwise."
    )
