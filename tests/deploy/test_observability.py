from __future__ import annotations

import json
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.observability.dashboard import BOARD, FILE, text
from service.metrics.table import PREFIX, TABLE
from tests.deploy.promql_kit import EXPRESSIONS, RULE_EXPRESSIONS, RULE_LIST, RULES, metrics_in

RUNBOOK = FILE.parents[1] / "README.md"
CASES: dict[str, Any] = yaml.safe_load(FILE.with_name("alerts_test.yaml").read_text(encoding="utf-8"))
ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
EXPORTED = {f"{PREFIX}{metric.name}{ending}" for metric in TABLE for ending in ENDINGS.get(metric.kind, ("",))}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_expressions_name_only_what_is_exported(expression: str) -> None:
    assert metrics_in(expression) - RULE_EXPRESSIONS.keys() <= EXPORTED


def test_every_metric_is_shown_or_watched() -> None:
    used = set().union(*map(metrics_in, EXPRESSIONS.values()))
    unused = {metric.name for metric in TABLE if not any(name.startswith(PREFIX + metric.name) for name in used)}
    assert unused == set()


def test_the_dashboard_is_the_table() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "python -m deploy.observability.dashboard renews it"


def test_panels_do_not_lie_on_each_other() -> None:
    panels = json.loads(text())["panels"]
    places = [panel["gridPos"] for panel in panels]
    for one, other in combinations(places, 2):
        apart = (one["x"] + one["w"] <= other["x"], other["x"] + other["w"] <= one["x"])
        over = (one["y"] + one["h"] <= other["y"], other["y"] + other["h"] <= one["y"])
        assert any(apart + over), (one, other)
    assert len({panel["id"] for panel in panels}) == len(panels) == sum(map(len, BOARD.values())) + len(BOARD)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not installed")
@pytest.mark.parametrize("order", [("check", "rules", "rules.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool(tmp_path: Path, order: tuple[str, ...]) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES), encoding="utf-8")
    shutil.copy(FILE.with_name("alerts_test.yaml"), tmp_path)
    done = subprocess.run(["promtool", *order], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_to_ring_and_to_be_silent() -> None:
    """Silent at a time of its own, or for another model at the same time."""
    rings: dict[str, set[bool]] = {}
    for case in CASES["tests"]:
        for expected in case["alert_rule_test"]:
            rings.setdefault(expected["alertname"], set()).add(bool(expected.get("exp_alerts")))
    alerts = {rule["alert"] for rule in RULE_LIST if "alert" in rule}
    assert {name for name, seen in rings.items() if True in seen} == alerts
    silent_for_another = {"HeadwaiterEngineFails", "HeadwaiterRefuses", "HeadwaiterNoReadyReplica"}
    assert {name for name, seen in rings.items() if False in seen} >= alerts - silent_for_another


def test_every_alert_has_its_place_in_the_runbook() -> None:
    runbook = RUNBOOK.read_text(encoding="utf-8")
    assert [rule["alert"] for rule in RULE_LIST if "alert" in rule and f"`{rule['alert']}`" not in runbook] == []
