"""`python -m deploy.observability.dashboard` writes dashboard.json for Grafana from the table of panels below."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).with_name("dashboard.json")
Unit = Literal["reqps", "s", "percentunit", "short", "cps"]
_COLUMNS, _PER_LINE, _HEIGHT = 24, 3, 8
_WIDTH = _COLUMNS // _PER_LINE
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_THESE = '{model=~"$model"}'


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: Unit
    curves: dict[str, str]
    """By legend, in which Grafana puts labels in double braces."""
    says: str


def _rate(metric: str, by: str = "model", where: str = _THESE) -> str:
    return f"sum by ({by}) (rate(headwaiter_{metric}{where}[$__rate_interval]))"


def _sum(metric: str) -> str:
    return f"sum by (model) (headwaiter_{metric}{_THESE})"


def _largest(metric: str) -> str:
    return f"max by (model) (headwaiter_{metric}{_THESE})"


def _quantile(q: float, metric: str, by: str = "model", where: str = _THESE) -> str:
    return f"histogram_quantile({q}, {_rate(f'{metric}_bucket', f'{by}, le', where)})"


def _with(condition: str) -> str:
    return f'{{model=~"$model", {condition}}}'


_EACH = "{{model}}"
BOARD: dict[str, list[Panel]] = {
    "Requests": [
        Panel(
            "Requests",
            "reqps",
            {"{{model}} {{method}}": _rate("requests_total", "model, method")},
            "Answered, whatever the answer was.",
        ),
        Panel(
            "Errors",
            "percentunit",
            {
                "{{model}} {{code}}": _rate("requests_total", "model, code", _with('code!="OK"'))
                + " / on (model) group_left "
                + _rate("requests_total")
            },
            "Share of requests that did not end with OK, by how they ended.",
        ),
        Panel(
            "Refused",
            "reqps",
            {_EACH: _rate("requests_total", where=_with('code="RESOURCE_EXHAUSTED"'))},
            "The wait would have been longer than limits.wait_ms, or all episodes were taken.",
        ),
    ],
    "Latency": [
        Panel(
            "Latency",
            "s",
            {f"{_EACH} p{round(100 * q)}": _quantile(q, "request_seconds") for q in (0.5, 0.95, 0.99)},
            "From a request's arrival at its replica to its end.",
        ),
        Panel(
            "Latency by stage, p95",
            "s",
            {"{{model}} {{stage}}": _quantile(0.95, "stage_seconds", "model, stage")},
            "Waiting in line, preparing the input, running the model.",
        ),
        Panel(
            "Streams, p95",
            "s",
            {
                "{{model}} first piece": _quantile(0.95, "first_token_seconds"),
                "{{model}} between pieces": _quantile(0.95, "between_tokens_seconds"),
            },
            "How long a reader waits for the first piece, and from one piece to the next.",
        ),
    ],
    "Work": [
        Panel(
            "Tokens",
            "cps",
            {"{{model}} in": _rate("input_tokens_total"), "{{model}} out": _rate("output_tokens_total")},
            "Read and written for answered requests, a second.",
        ),
        Panel(
            "Images and episodes",
            "short",
            {"{{model}} images/s": _rate("images_total"), "{{model}} episodes open": _sum("episodes_open")},
            "Images read or made; episodes that hold a row.",
        ),
        Panel(
            "Rows a step",
            "short",
            {_EACH: f"{_rate('row_steps_total')} / {_rate('steps_total')}"},
            "How many rows run together: the more, the cheaper each.",
        ),
    ],
    "Saturation": [
        Panel(
            "Rows in use",
            "percentunit",
            {_EACH: f"{_sum('rows_in_use')} / ({_sum('rows')} > 0)"},
            "Of those that all replicas have: what autoscaling holds at `target`. Models without rows are not here.",
        ),
        Panel(
            "Engine at work",
            "short",
            {
                "{{model}} reading": _rate("engine_encode_seconds_total"),
                "{{model}} writing": _rate("engine_decode_seconds_total"),
            },
            "Seconds a second, over all replicas and their threads.",
        ),
        Panel(
            "Padding",
            "percentunit",
            {_EACH: f"{_rate('padding_places_total')} / {_rate('places_total')}"},
            "Share of batched places that were only filled up.",
        ),
        Panel(
            "Line",
            "short",
            {_EACH: _sum("queue_waiting")},
            "Jobs that wait for an engine.",
        ),
        Panel(
            "Wait of a newcomer",
            "s",
            {_EACH: _largest("estimated_wait_seconds")},
            "As the replicas estimate it; the longest. Beyond limits.wait_ms they refuse.",
        ),
        Panel(
            "Given up",
            "cps",
            {
                "{{model}} cancelled or late": _rate("cancelled_total"),
                "{{model}} failed in the runtime": _rate("engine_failures_total"),
            },
            "Jobs that nobody waited for any more; jobs that the runtime failed at.",
        ),
    ],
    "Replicas": [
        Panel(
            "Replicas",
            "short",
            {"{{model}} ready": _sum("ready"), "{{model}} wanted": _largest("replicas_wanted")},
            "Loaded and warmed up, and how many Serve means to have.",
        ),
        Panel(
            "Versions",
            "short",
            {
                "{{model}} {{version}} {{precision}} {{device}}": (
                    f"count by (model, version, precision, device) (headwaiter_model_info{_THESE})"
                )
            },
            "Nodes that serve each version: two while a model is being updated.",
        ),
        Panel(
            "Jobs",
            "cps",
            {
                "{{model}} taken": _rate("engine_accepted_total"),
                "{{model}} finished": _rate("engine_finished_total"),
                "{{model}} refused": _rate("refused_total"),
                "{{model}} waiting time, s/s": _rate("engine_queue_seconds_total"),
            },
            "What the engines took, finished and refused; a request may be several jobs.",
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    return {
        "uid": "headwaiter",
        "title": "Headwaiter",
        "tags": ["headwaiter"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_SOURCES, _MODELS]},
        "panels": _panels(),
    }


_SOURCES = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
_MODELS = {
    "name": "model",
    "type": "query",
    "label": "Model",
    "datasource": _SOURCE,
    "query": "label_values(headwaiter_replicas_wanted, model)",
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".+",
}


def _panels() -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    top = 0
    for title, panels in BOARD.items():
        placed.append(
            {"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1}, "panels": []}
        )
        for index, panel in enumerate(panels):
            line, column = divmod(index, _PER_LINE)
            place = {"x": column * _WIDTH, "y": top + 1 + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            placed.append(_curves(panel) | {"gridPos": place})
        top += 1 + _HEIGHT * -(-len(panels) // _PER_LINE)
    return [{"id": number, **panel} for number, panel in enumerate(placed, 1)]


def _curves(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for index, (legend, expression) in enumerate(panel.curves.items())
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
