"""What a running service serves, from the state that Ray Serve reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headwaiter.serving.cluster import PHASES, root_cause
from headwaiter.serving.config import CATALOG

Phase = Literal["ready", "starting", "failed", "stopping"]
_PHASES: dict[str, Phase] = {**PHASES, "DELETING": "stopping"}


@dataclass(frozen=True, slots=True)
class ModelStatus:
    name: str
    phase: Phase
    version: str
    """Version and precision are the configured ones; old replicas may still serve while `phase` is not ready."""
    precision: str
    running_replicas: int | None = None
    desired_replicas: int | None = None
    reason: str = ""
    """Why the model is not ready, if it is known."""


def model_statuses(applications: Mapping[str, Mapping[str, Any]]) -> list[ModelStatus]:
    """The models of `ServeController.applications`, without the catalog."""
    return [_model_status(name, app) for name, app in sorted(applications.items()) if name != CATALOG]


def _model_status(name: str, application: Mapping[str, Any]) -> ModelStatus:
    deployments = list(application["deployments"].values())
    arguments = (application.get("deployed_app_config") or {}).get("args", {})
    *_, version, precision = ("", "", *Path(arguments.get("folder", "")).parts)
    phase = _PHASES.get(application["status"], "starting")
    running = sum(replica["state"] == "RUNNING" for deployment in deployments for replica in deployment["replicas"])
    return ModelStatus(
        name,
        phase,
        version,
        precision,
        running,
        sum(deployment["target_num_replicas"] for deployment in deployments),
        "" if phase == "ready" else _reason(deployments, application["message"], running),
    )


def _reason(deployments: list[Mapping[str, Any]], application_message: str, running: int) -> str:
    messages = [*(deployment["message"] for deployment in deployments), application_message]
    cause = root_cause(next(filter(None, messages), ""))
    if not cause:
        return ""
    return f"{cause}; the old replicas keep serving." if running else f"{cause}."
