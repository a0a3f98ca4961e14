"""How many replicas a model should have: what Ray Serve's autoscaler asks, answered from what the engines tell.

Serve's own policy counts requests under way, and cannot see that one request is a whole page of sentences, that a beam
takes a row for each of its paths, or how long the line is in seconds. This one adds up, over the replicas,

    share of the replica in use + seconds that a newcomer would wait / seconds that he may

which is how many replicas' work there is, the lines worked off in time included, and gives each `target` of that.
It grows when that has been too much for `GROW_SECONDS`, and shrinks to the most that was wanted within the last
`shrink_seconds`: a lull between two waves costs nothing.

Ray carries this module by value to its controller: it imports nothing of ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

SHARE, WAIT = "share", "wait_seconds"
REPORT_SECONDS = 2.0  # from one report of a replica to the next
LOOK_BACK_SECONDS = 10.0  # reports are averaged over
GROW_SECONDS = 5.0
_MOST_OF_ONE = 2.0  # replicas' work that one replica can stand for, so that a very long line does not ask for the moon
_NOTHING = 1e-9

Wish = tuple[float, int]
"""When, and how many."""


class Load(NamedTuple):
    """Of one replica, averaged over a while."""

    share: float
    wait: float


def replicas_wanted(loads: Iterable[Load], target: float, patience: float) -> int:
    """Enough that each has `target` of itself in use, and that nobody has to wait longer than `patience`."""
    work = sum(min(_MOST_OF_ONE, load.share + load.wait / patience) for load in loads)
    return math.ceil(work / target - _NOTHING)


def remember(wishes: list[Wish], now: float, wanted: int, seconds: float) -> list[Wish]:
    """The wishes of the last `seconds`, less those that a later one was at least as large as: the first is the most."""
    return [wish for wish in wishes if wish[0] > now - seconds and wish[1] > wanted] + [(now, wanted)]


class RowsPolicy:
    def __init__(self, target: float, patience_seconds: float, shrink_seconds: float) -> None:
        self._target, self._patience, self._shrink_seconds = target, patience_seconds, shrink_seconds

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        now, there = float(ctx.current_time or 0.0), ctx.target_num_replicas
        wanted = self._wanted(ctx)
        before = ctx.policy_state.get("wishes", [(now, there)])  # what was wanted before is not known: what is there
        wishes = remember(before, now, wanted, self._shrink_seconds)
        grown = ctx.last_scale_up_time is not None and now - ctx.last_scale_up_time < self._shrink_seconds
        kept = there if grown else min(there, wishes[0][1])
        return max(wanted, kept), {"wishes": wishes}

    def _wanted(self, ctx: AutoscalingContext) -> int:
        shares, waits = ((ctx.aggregated_metrics or {}).get(name, {}) for name in (SHARE, WAIT))
        loads = [Load(share, waits.get(replica, 0.0)) for replica, share in shares.items()]
        if not loads:  # none has told anything yet
            return ctx.target_num_replicas
        return max(replicas_wanted(loads, self._target, self._patience), int(ctx.total_num_requests > 0))
