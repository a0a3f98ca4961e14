"""The load that a replica reports to the autoscaler."""

from __future__ import annotations

import time
from typing import Any

from headwaiter.engine.worker import Engine
from headwaiter.serving.autoscaling import ESTIMATED_WAIT, UTILISATION


class LoadGauge:
    """Utilisation of an engine: slots in use, or without slots the busy time of its workers since the last read."""

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._last_read, self._last_work_seconds = time.monotonic(), self._work_seconds()

    def read(self) -> dict[str, float]:
        return {UTILISATION: self._utilisation(), ESTIMATED_WAIT: self._engine.queue.backlog_seconds() or 0.0}

    def _utilisation(self) -> float:
        counters, now = self._engine.counters, time.monotonic()
        if counters.slots:
            return counters.slots_in_use / counters.slots
        work_seconds = self._work_seconds()
        available_seconds = max(len(self._engine.queue.workers), 1) * max(now - self._last_read, 1e-3)
        utilisation = min(1.0, (work_seconds - self._last_work_seconds) / available_seconds)
        self._last_read, self._last_work_seconds = now, work_seconds
        return utilisation

    def _work_seconds(self) -> float:
        counters = self._engine.counters
        return counters.encode_seconds + counters.decode_seconds
