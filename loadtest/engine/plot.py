"""Bar chart of the engine benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.engine.measurements import EncoderMeasurement, Measurement, TranslationMeasurement, ratio
from loadtest.engine.targets import BARE_SESSION

_COLOURS = {
    "headwaiter fp32": "#0b6e63",
    "headwaiter int8": "#2fb59f",
    "ctranslate2 fp32": "#7a4e2d",
    "ctranslate2 int8": "#d9a066",
    "transformers fp32": "#9aa0a6",
    "openvino fp32": "#4a6fa5",
    "torch fp32": "#7d6b91",
}
_MODELS = {"vit-b16": "ViT-B/16", "bert-base": "BERT-base"}
_INK, _GRID = "#222222", "#e6e6e6"
_WIDTH = 0.84  # of a group of bars, in axis units


def draw(rows: Mapping[str, Sequence[Measurement]], file: Path) -> None:
    matplotlib = importlib.import_module("matplotlib")  # optional: installed by the extra `bench`
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    translation = [row for row in rows.get("translation", ()) if isinstance(row, TranslationMeasurement)]
    encoders = [row for row in rows.get("encoders", ()) if isinstance(row, EncoderMeasurement)]
    searches = sorted({row.beams for row in translation})
    panels = len(searches) + bool(encoders)
    if not panels:
        return
    with pyplot.rc_context({"font.size": 10, "text.color": _INK, "axes.edgecolor": "#bbbbbb"}):
        widths = [4] * len(searches) + [3] * bool(encoders)
        size = (1.55 * sum(widths) + 0.6, 4.6)
        figure, axes_grid = pyplot.subplots(1, panels, figsize=size, width_ratios=widths, squeeze=False)
        for axes, beams in zip(axes_grid[0], searches, strict=False):
            _draw_translation(axes, [row for row in translation if row.beams == beams], beams)
        if encoders:
            _draw_encoders(axes_grid[0][-1], encoders)
        figure.tight_layout(rect=(0, 0.09, 1, 1), w_pad=2)
        _legend(figure, axes_grid[0])
        figure.savefig(file, dpi=150)
        pyplot.close(figure)


def _draw_translation(axes: Any, rows: Sequence[TranslationMeasurement], beams: int) -> None:
    concurrencies = sorted({row.concurrency for row in rows})
    for group, concurrency in enumerate(concurrencies):
        _bars(axes, group, [(row.backend, row.rate) for row in rows if row.concurrency == concurrency])
    _style(axes, [f"concurrency {concurrency}" for concurrency in concurrencies])
    axes.set_title(
        f"OPUS-MT zh→en, {f'{beams} beams' if beams > 1 else 'greedy'}: sentences/s", loc="left", fontsize=11
    )


def _draw_encoders(axes: Any, rows: Sequence[EncoderMeasurement]) -> None:
    models = [name for name in _MODELS if any(row.model == name for row in rows)]
    for group, model in enumerate(models):
        of_model = [row for row in rows if row.model == model and row.engine != "onnxruntime"]
        ratios = [(row.backend, ratio(row, rows, f"onnxruntime {row.precision}")) for row in of_model]
        _bars(axes, group, [(name, value) for name, value in ratios if value is not None], labels_inside=True)
    axes.axhline(BARE_SESSION, color="#c0392b", linewidth=1, linestyle="--", zorder=3)
    axes.text(len(models) - 0.52, BARE_SESSION + 0.012, f"{BARE_SESSION}", color="#c0392b", fontsize=8, ha="right")
    _style(axes, [_MODELS[name] for name in models])
    axes.set_title("speed ÷ bare ONNX Runtime session, same precision", loc="left", fontsize=11)


def _bars(axes: Any, group: int, values: Sequence[tuple[str, float]], *, labels_inside: bool = False) -> None:
    label: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 7.5}
    label |= {"xytext": (0, -14), "color": "white"} if labels_inside else {"xytext": (0, 2)}
    width = _WIDTH / max(len(values), 1)
    for index, (name, value) in enumerate(values):
        x = group - _WIDTH / 2 + (index + 0.5) * width
        axes.bar(x, value, 0.92 * width, color=_COLOURS[name], label=name, zorder=2)
        axes.annotate(f"{value:.2f}" if labels_inside else f"{value:.1f}", (x, value), **label)


def _style(axes: Any, groups: Sequence[str]) -> None:
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=_GRID, zorder=0)
    axes.set_axisbelow(True)
    axes.margins(y=0.12)


def _legend(figure: Any, panels: Sequence[Any]) -> None:
    """Draw one legend for all panels."""
    shown = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = [name for name in _COLOURS if name in shown]
    handles = [shown[name] for name in names]
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False, fontsize=9)
