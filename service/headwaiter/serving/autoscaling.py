"""Autoscaling policy for Ray Serve, driven by the load that the engines report.

Serve's default policy counts ongoing requests. It cannot see that one request may hold many sentences, that each beam
uses a slot, or how many seconds the queue represents. This policy sums over the replicas

    utilisation + estimated_wait / max_wait

which is the work in units of one replica, queues included, and divides it by `target`. It scales up after the work has
been too much for `SCALE_UP_DELAY_SECONDS` and scales down to the largest target of the last `scale_down_delay_seconds`.

Ray pickles this module by value into its controller, so it must not import other headwaiter modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

UTILISATION, ESTIMATED_WAIT = "utilisation", "estimated_wait_seconds"
REPORT_SECONDS = 2.0  # interval between the reports of a replica
LOOK_BACK_SECONDS = 10.0  # averaging window of the reports
SCALE_UP_DELAY_SECONDS = 5.0
_MAX_LOAD_PER_REPLICA = 2.0  # bounds the effect of a single very long queue
_EPSILON = 1e-9  # absorbs rounding errors before ceil

TimedTarget = tuple[float, int]
"""Time in seconds, and the number of replicas desired at that time."""


class ReplicaLoad(NamedTuple):
    """Load of one replica, averaged over `LOOK_BACK_SECONDS`; the wait is in seconds."""

    utilisation: float
    estimated_wait: float


def desired_replicas(loads: Iterable[ReplicaLoad], target: float, max_wait: float) -> int:
    """Replicas needed to bring each to `target` utilisation and to serve the queues within `max_wait` seconds."""
    work = sum(min(_MAX_LOAD_PER_REPLICA, load.utilisation + load.estimated_wait / max_wait) for load in loads)
    return math.ceil(work / target - _EPSILON)


def window_maximum(targets: list[TimedTarget], now: float, desired: int, seconds: float) -> list[TimedTarget]:
    """Append a target to a sliding-window maximum over `seconds`; the first entry of the result is the maximum."""
    larger = [(time, replicas) for time, replicas in targets if time > now - seconds and replicas > desired]
    return [*larger, (now, desired)]


class UtilisationPolicy:
    def __init__(self, target: float, max_wait_seconds: float, scale_down_delay_seconds: float) -> None:
        self._target = target
        self._max_wait = max_wait_seconds
        self._scale_down_delay = scale_down_delay_seconds

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        now, current = float(ctx.current_time or 0.0), ctx.target_num_replicas
        desired = self._desired(ctx)
        previous = ctx.policy_state.get("targets", [(now, current)])  # a new policy assumes the current number
        targets = window_maximum(previous, now, desired, self._scale_down_delay)
        scaled_up = ctx.last_scale_up_time is not None and now - ctx.last_scale_up_time < self._scale_down_delay
        floor = current if scaled_up else min(current, targets[0][1])
        return max(desired, floor), {"targets": targets}

    def _desired(self, ctx: AutoscalingContext) -> int:
        utilisations, waits = ((ctx.aggregated_metrics or {}).get(name, {}) for name in (UTILISATION, ESTIMATED_WAIT))
        loads = [ReplicaLoad(utilisation, waits.get(replica, 0.0)) for replica, utilisation in utilisations.items()]
        if not loads:  # no replica has reported yet
            return ctx.target_num_replicas
        return max(desired_replicas(loads, self._target, self._max_wait), int(ctx.total_num_requests > 0))
