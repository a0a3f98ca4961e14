"""`python -m deploy.observability.dashboard`: write the Grafana dashboard dashboard.json from the panels below."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).with_name("dashboard.json")
Unit = Literal["reqps", "s", "percentunit", "short", "cps"]
_COLUMNS, _PANELS_PER_ROW, _HEIGHT = 24, 3, 8
_WIDTH = _COLUMNS // _PANELS_PER_ROW
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SELECTED_MODELS = '{model=~"$model"}'


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: Unit
    queries: dict[str, str]
    """PromQL expressions by legend; Grafana replaces `{{label}}` in legends."""
    description: str


def _rate(metric: str, by: str = "model", where: str = _SELECTED_MODELS) -> str:
    return f"sum by ({by}) (rate(headwaiter_{metric}{where}[$__rate_interval]))"


def _sum(metric: str) -> str:
    return f"sum by (model) (headwaiter_{metric}{_SELECTED_MODELS})"


def _max(metric: str) -> str:
    return f"max by (model) (headwaiter_{metric}{_SELECTED_MODELS})"


def _quantile(q: float, metric: str, by: str = "model", where: str = _SELECTED_MODELS) -> str:
    return f"histogram_quantile({q}, {_rate(f'{metric}_bucket', f'{by}, le', where)})"


def _matchers(condition: str) -> str:
    return f'{{model=~"$model", {condition}}}'


_MODEL_LEGEND = "{{model}}"
DASHBOARD_ROWS: dict[str, list[Panel]] = {
    "Requests": [
        Panel(
            "Requests",
            "reqps",
            {"{{model}} {{method}}": _rate("requests_total", "model, method")},
            "Completed requests per second, successful or not.",
        ),
        Panel(
            "Errors",
            "percentunit",
            {
                "{{model}} {{code}}": _rate("requests_total", "model, code", _matchers('code!="OK"'))
                + " / on (model) group_left "
                + _rate("requests_total")
            },
            "Fraction of requests by status code other than OK.",
        ),
        Panel(
            "Rejected requests",
            "reqps",
            {_MODEL_LEGEND: _rate("requests_total", where=_matchers('code="RESOURCE_EXHAUSTED"'))},
            "Rejected because the estimated wait exceeds limits.max_queue_wait_ms or no slot is free for an episode.",
        ),
    ],
    "Latency": [
        Panel(
            "Latency",
            "s",
            {f"{_MODEL_LEGEND} p{round(100 * q)}": _quantile(q, "request_duration_seconds") for q in (0.5, 0.95, 0.99)},
            "Time from the arrival of a request at the replica to its end.",
        ),
        Panel(
            "Latency by stage, p95",
            "s",
            {"{{model}} {{stage}}": _quantile(0.95, "request_stage_duration_seconds", "model, stage")},
            "Queueing, preprocessing, and running the model.",
        ),
        Panel(
            "Streaming latency, p95",
            "s",
            {
                "{{model}} time to first token": _quantile(0.95, "time_to_first_token_seconds"),
                "{{model}} inter-token latency": _quantile(0.95, "inter_token_latency_seconds"),
            },
            "Time to the first chunk of a stream, and between consecutive chunks.",
        ),
    ],
    "Throughput": [
        Panel(
            "Tokens",
            "cps",
            {"{{model}} input": _rate("input_tokens_total"), "{{model}} output": _rate("output_tokens_total")},
            "Input and generated tokens of successful requests per second.",
        ),
        Panel(
            "Images and episodes",
            "short",
            {"{{model}} images/s": _rate("images_total"), "{{model}} open episodes": _sum("episodes_open")},
            "Input and generated images per second; open policy episodes.",
        ),
        Panel(
            "Batch size",
            "short",
            {_MODEL_LEGEND: f"{_rate('engine_slot_steps_total')} / {_rate('engine_steps_total')}"},
            "Mean number of slots per engine step.",
        ),
    ],
    "Saturation": [
        Panel(
            "Slots in use",
            "percentunit",
            {_MODEL_LEGEND: f"{_sum('slots_in_use')} / ({_sum('slots')} > 0)"},
            "Fraction over all replicas; autoscaling keeps it at `target`. Single-pass models have no slots.",
        ),
        Panel(
            "Engine time",
            "short",
            {
                "{{model}} encoding": _rate("engine_encode_seconds_total"),
                "{{model}} decoding": _rate("engine_decode_seconds_total"),
            },
            "Busy seconds per second, summed over all replicas and workers.",
        ),
        Panel(
            "Padding",
            "percentunit",
            {_MODEL_LEGEND: f"{_rate('batch_padding_elements_total')} / {_rate('batch_elements_total')}"},
            "Fraction of batched input elements that are padding.",
        ),
        Panel(
            "Queue depth",
            "short",
            {_MODEL_LEGEND: _sum("queue_depth")},
            "Jobs in the queue.",
        ),
        Panel(
            "Estimated wait",
            "s",
            {_MODEL_LEGEND: _max("estimated_wait_seconds")},
            "Queueing delay of a new request, maximum over replicas. Above limits.max_queue_wait_ms it is rejected.",
        ),
        Panel(
            "Error of the estimated wait",
            "percentunit",
            {
                _MODEL_LEGEND: (
                    f"{_rate('queue_wait_estimate_error_seconds_total')} / {_rate('queue_wait_observed_seconds_total')}"
                )
            },
            "Absolute errors of the estimated waits, relative to the observed ones.",
        ),
        Panel(
            "Cancelled and failed jobs",
            "cps",
            {
                "{{model}} cancelled": _rate("engine_jobs_cancelled_total"),
                "{{model}} failed": _rate("engine_jobs_failed_total"),
            },
            "Jobs cancelled by a disconnect or a deadline, and jobs that failed in the inference runtime.",
        ),
    ],
    "Replicas": [
        Panel(
            "Replicas",
            "short",
            {"{{model}} ready": _sum("replicas_ready"), "{{model}} desired": _max("replicas_desired")},
            "Replicas that are loaded and warmed up, and the target number.",
        ),
        Panel(
            "Replaced and failed replicas",
            "cps",
            {
                "{{model}} unhealthy": _rate("engine_unhealthy_total"),
                "{{model}} did not start": _rate("model_start_failures_total"),
            },
            "Replicas whose engine stopped answering, and attempts to start one that failed.",
        ),
        Panel(
            "Versions",
            "short",
            {
                "{{model}} {{version}} {{precision}} {{device}}": (
                    f"count by (model, version, precision, device) (headwaiter_model_info{_SELECTED_MODELS})"
                )
            },
            "Nodes serving each version; two versions during an update.",
        ),
        Panel(
            "Jobs",
            "cps",
            {
                "{{model}} accepted": _rate("engine_jobs_accepted_total"),
                "{{model}} finished": _rate("engine_jobs_finished_total"),
                "{{model}} rejected": _rate("requests_rejected_total"),
                "{{model}} queue time, s/s": _rate("engine_queue_seconds_total"),
            },
            "Jobs accepted, finished and rejected by the engines; a request may consist of several jobs.",
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
        "templating": {"list": [_DATASOURCE_VARIABLE, _MODEL_VARIABLE]},
        "panels": _panels(),
    }


_DATASOURCE_VARIABLE = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
_MODEL_VARIABLE = {
    "name": "model",
    "type": "query",
    "label": "Model",
    "datasource": _DATASOURCE,
    "query": "label_values(headwaiter_replicas_desired, model)",
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".+",
}


def _panels() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    top = 0
    for title, panels in DASHBOARD_ROWS.items():
        result.append(
            {"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1}, "panels": []}
        )
        for index, panel in enumerate(panels):
            row, column = divmod(index, _PANELS_PER_ROW)
            position = {"x": column * _WIDTH, "y": top + 1 + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            result.append(_panel_json(panel) | {"gridPos": position})
        top += 1 + _HEIGHT * -(-len(panels) // _PANELS_PER_ROW)
    return [{"id": number, **panel} for number, panel in enumerate(result, 1)]


def _panel_json(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": expression, "legendFormat": legend}
        for index, (legend, expression) in enumerate(panel.queries.items())
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
