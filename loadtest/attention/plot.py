"""Plot of time and memory of token mixers by sequence length."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.attention.scaling import ScalingMeasurement

_COLOURS = {
    "softmax": "#222222",
    "linformer": "#0b6e63",
    "performer": "#2fb59f",
    "reformer": "#4a6fa5",
    "longformer": "#c0392b",
    "synthesizer-dense": "#d9a066",
    "synthesizer-random": "#7a4e2d",
    "fnet": "#7d6b91",
}
_PANELS = (("milliseconds", "ms per forward pass, one thread"), ("peak_mb", "peak memory, MB above the baseline"))


def draw(rows: Sequence[ScalingMeasurement], file: Path) -> None:
    matplotlib = importlib.import_module("matplotlib")  # optional: installed by the extra `bench`
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, panels = pyplot.subplots(1, len(_PANELS), figsize=(10.5, 4.6))
    for axes, (field, title) in zip(panels, _PANELS, strict=True):
        _panel(axes, rows, field)
        axes.set_title(title, loc="left", fontsize=11)
    names = [name for name in _COLOURS if any(row.mixer == name for row in rows)]
    figure.tight_layout(rect=(0, 0.09, 1, 1), w_pad=2)
    figure.legend(panels[0].get_lines(), names, loc="lower center", ncols=len(names), frameon=False, fontsize=8.5)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _panel(axes: Any, rows: Sequence[ScalingMeasurement], field: str) -> None:
    for name, colour in _COLOURS.items():
        measured = [row for row in rows if row.mixer == name]
        if measured:
            values = [getattr(row, field) for row in measured]
            axes.plot([row.length for row in measured], values, "o-", color=colour, markersize=3.5, linewidth=1.5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({row.length for row in rows})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=8)
    axes.minorticks_off()
    axes.grid(color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
