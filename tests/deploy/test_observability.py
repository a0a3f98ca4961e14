from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.observability.dashboard import DASHBOARD_ROWS, FILE, text
from headwaiter.serving.metrics.definitions import METRICS, PREFIX
from tests.deploy.promql_kit import ALERTS, EXPRESSIONS, RULE_EXPRESSIONS, RULE_LIST, RULES, metrics_in

RUNBOOK = FILE.parents[2] / "docs/operations/README.md"
ALERT_CASES = FILE.with_name("alerts_test.yaml")
CASES: dict[str, Any] = yaml.safe_load(ALERT_CASES.read_text(encoding="utf-8"))
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
EXPORTED = {f"{PREFIX}{metric.name}{suffix}" for metric in METRICS for suffix in SUFFIXES.get(metric.kind, ("",))}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_expression_uses_exported_metrics_only(expression: str) -> None:
    assert metrics_in(expression) - RULE_EXPRESSIONS.keys() <= EXPORTED


@pytest.mark.parametrize("file", [FILE, ALERTS, ALERT_CASES, RUNBOOK], ids=lambda file: file.name)
def test_file_mentions_exported_metrics_only(file: Path) -> None:
    """Covers dashboard variables, alert test series and prose, which are not parsed as expressions."""
    mentioned = set(re.findall(rf"\b{PREFIX}[a-z0-9_]+", file.read_text(encoding="utf-8")))
    histograms = {PREFIX + metric.name for metric in METRICS if metric.kind == "histogram"}
    assert mentioned <= EXPORTED | (histograms if file == RUNBOOK else set())


def test_every_metric_is_used_by_dashboard_or_alerts() -> None:
    used = set().union(*map(metrics_in, EXPRESSIONS.values()))
    unused = {
        metric.name
        for metric in METRICS
        if used.isdisjoint(f"{PREFIX}{metric.name}{suffix}" for suffix in SUFFIXES.get(metric.kind, ("",)))
    }
    assert unused == set()


def test_dashboard_json_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run `python -m deploy.observability.dashboard`"


def test_dashboard_panels_do_not_overlap() -> None:
    panels = json.loads(text())["panels"]
    positions = [panel["gridPos"] for panel in panels]
    for first, second in combinations(positions, 2):
        separate_columns = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        separate_rows = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert separate_columns or separate_rows, (first, second)
    expected = sum(map(len, DASHBOARD_ROWS.values())) + len(DASHBOARD_ROWS)
    assert len({panel["id"] for panel in panels}) == len(panels) == expected


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not installed")
@pytest.mark.parametrize("arguments", [("check", "rules", "rules.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_alerts_pass_promtool(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES), encoding="utf-8")
    shutil.copy(ALERT_CASES, tmp_path)
    result = subprocess.run(["promtool", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_firing_and_silent_case() -> None:
    """The silent case is another time, or another model at the same time."""
    outcomes: dict[str, set[bool]] = {}
    for case in CASES["tests"]:
        for expected in case["alert_rule_test"]:
            outcomes.setdefault(expected["alertname"], set()).add(bool(expected.get("exp_alerts")))
    alerts = {rule["alert"] for rule in RULE_LIST if "alert" in rule}
    assert {name for name, fired in outcomes.items() if True in fired} == alerts
    silent_for_another_model = {"HeadwaiterEngineFailures", "HeadwaiterRejectingRequests", "HeadwaiterNoReadyReplica"}
    assert {name for name, fired in outcomes.items() if False in fired} >= alerts - silent_for_another_model


def test_every_alert_is_in_runbook() -> None:
    runbook = RUNBOOK.read_text(encoding="utf-8")
    assert [rule["alert"] for rule in RULE_LIST if "alert" in rule and f"`{rule['alert']}`" not in runbook] == []
