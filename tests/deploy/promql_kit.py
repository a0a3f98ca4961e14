"""PromQL expressions of the dashboard and of the alerts, and the metrics they use."""

from __future__ import annotations

from typing import Any

import promql_parser
import yaml

from deploy.observability.dashboard import DASHBOARD_ROWS, FILE

ALERTS = FILE.with_name("alerts.yaml")
RULES: dict[str, Any] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["spec"]
RULE_LIST: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]


def substitute_variables(expression: str, seconds: int = 60) -> str:
    """Replace the Grafana variables, selecting all models."""
    return expression.replace("$__rate_interval", f"{seconds}s").replace("$model", ".+")


PANELS = {
    f"{panel.title}: {legend}": query
    for row in DASHBOARD_ROWS.values()
    for panel in row
    for legend, query in panel.queries.items()
}
RULE_EXPRESSIONS = {rule.get("alert") or rule["record"]: rule["expr"] for rule in RULE_LIST}
EXPRESSIONS = {**PANELS, **RULE_EXPRESSIONS}


def metrics_in(expression: str) -> set[str]:
    names: set[str] = set()

    def visit(node: object) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name)

    promql_parser.walk(promql_parser.parse(substitute_variables(expression)), visit)
    return names
